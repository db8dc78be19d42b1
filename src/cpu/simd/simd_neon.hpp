// SPDX-License-Identifier: Apache-2.0
#pragma once

// NEON of AArch64, no extension beyond ARMv8.0: four floats. See simd.hpp for the contract.

#include <arm_neon.h>

#include "cpu/simd/types.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

inline constexpr int kLanes = 4;
// Rows of a GEMM tile that is 1, 2, ... vectors wide: what the registers hold.
inline constexpr int kTileVecs = 4;
inline constexpr int kTileRows[kTileVecs] = {8, 8, 6,
                                             5};  // GCC loads all broadcasts of a step first
inline constexpr bool kHasBf16Dot = false;
inline constexpr bool kHasTiles = false;

struct Vf {
  float32x4_t v;
};
struct Vu {
  uint32x4_t v;
};
struct Mf {
  uint32x4_t m;  ///< lanes of all ones or all zeros
};

FLASHTILE_INLINE int clamp_count(int64_t count) {
  return count >= kLanes ? kLanes : count <= 0 ? 0 : static_cast<int>(count);
}

// ---- masks ----

FLASHTILE_INLINE Vu iota_u() {
  const uint32_t lanes[4] = {0, 1, 2, 3};
  return {vld1q_u32(lanes)};
}
FLASHTILE_INLINE Mf first_lanes(int64_t count) {
  return {vcltq_u32(iota_u().v, vdupq_n_u32(static_cast<uint32_t>(clamp_count(count))))};
}
FLASHTILE_INLINE Mf operator&(Mf a, Mf b) { return {vandq_u32(a.m, b.m)}; }
FLASHTILE_INLINE Mf operator|(Mf a, Mf b) { return {vorrq_u32(a.m, b.m)}; }
FLASHTILE_INLINE Mf operator^(Mf a, Mf b) { return {veorq_u32(a.m, b.m)}; }
FLASHTILE_INLINE Mf operator~(Mf a) { return {vmvnq_u32(a.m)}; }
FLASHTILE_INLINE uint32_t bits(Mf a) {
  const uint32_t weights[4] = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(a.m, vld1q_u32(weights)));
}
FLASHTILE_INLINE bool any(Mf a) { return vmaxvq_u32(a.m) != 0; }
FLASHTILE_INLINE bool all(Mf a) { return vminvq_u32(a.m) != 0; }

// ---- floats ----

FLASHTILE_INLINE Vf zero() { return {vdupq_n_f32(0)}; }
FLASHTILE_INLINE Vf broadcast(float x) { return {vdupq_n_f32(x)}; }
FLASHTILE_INLINE Vf load(const float* p) { return {vld1q_f32(p)}; }
FLASHTILE_INLINE void store(float* p, Vf x) { vst1q_f32(p, x.v); }
FLASHTILE_INLINE Vf load_partial(const float* p, int64_t count) {
  const int n = clamp_count(count);
  if (n == kLanes) return load(p);
  float32x4_t x = vdupq_n_f32(0);
  if (n > 0) x = vsetq_lane_f32(p[0], x, 0);
  if (n > 1) x = vsetq_lane_f32(p[1], x, 1);
  if (n > 2) x = vsetq_lane_f32(p[2], x, 2);
  return {x};
}
FLASHTILE_INLINE void store_partial(float* p, Vf x, int64_t count) {
  const int n = clamp_count(count);
  if (n == kLanes) return store(p, x);
  if (n > 0) p[0] = vgetq_lane_f32(x.v, 0);
  if (n > 1) p[1] = vgetq_lane_f32(x.v, 1);
  if (n > 2) p[2] = vgetq_lane_f32(x.v, 2);
}

FLASHTILE_INLINE Vf operator+(Vf a, Vf b) { return {vaddq_f32(a.v, b.v)}; }
FLASHTILE_INLINE Vf operator-(Vf a, Vf b) { return {vsubq_f32(a.v, b.v)}; }
FLASHTILE_INLINE Vf operator*(Vf a, Vf b) { return {vmulq_f32(a.v, b.v)}; }
FLASHTILE_INLINE Vf operator/(Vf a, Vf b) { return {vdivq_f32(a.v, b.v)}; }
FLASHTILE_INLINE Vf operator-(Vf a) { return {vnegq_f32(a.v)}; }
FLASHTILE_INLINE Vf fma(Vf a, Vf b, Vf c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
FLASHTILE_INLINE Vf fnma(Vf a, Vf b, Vf c) { return {vfmsq_f32(c.v, a.v, b.v)}; }
FLASHTILE_INLINE Vf abs(Vf a) { return {vabsq_f32(a.v)}; }
FLASHTILE_INLINE Vf sqrt(Vf a) { return {vsqrtq_f32(a.v)}; }
FLASHTILE_INLINE Vf round_nearest(Vf a) { return {vrndnq_f32(a.v)}; }
FLASHTILE_INLINE Vf floor(Vf a) { return {vrndmq_f32(a.v)}; }

FLASHTILE_INLINE Mf operator<(Vf a, Vf b) { return {vcltq_f32(a.v, b.v)}; }
FLASHTILE_INLINE Mf operator<=(Vf a, Vf b) { return {vcleq_f32(a.v, b.v)}; }
FLASHTILE_INLINE Mf operator>(Vf a, Vf b) { return {vcgtq_f32(a.v, b.v)}; }
FLASHTILE_INLINE Mf operator>=(Vf a, Vf b) { return {vcgeq_f32(a.v, b.v)}; }
FLASHTILE_INLINE Mf operator==(Vf a, Vf b) { return {vceqq_f32(a.v, b.v)}; }
FLASHTILE_INLINE Mf operator!=(Vf a, Vf b) { return ~(a == b); }
FLASHTILE_INLINE Vf select(Mf m, Vf if_set, Vf if_clear) {
  return {vbslq_f32(m.m, if_set.v, if_clear.v)};
}
// The machine's own minimum and maximum treat NaN another way.
FLASHTILE_INLINE Vf min(Vf a, Vf b) { return select(a < b, a, b); }
FLASHTILE_INLINE Vf max(Vf a, Vf b) { return select(a > b, a, b); }

// ---- unsigned 32-bit integers ----

FLASHTILE_INLINE Vu broadcast_u(uint32_t x) { return {vdupq_n_u32(x)}; }
FLASHTILE_INLINE Vu load_u(const uint32_t* p) { return {vld1q_u32(p)}; }
FLASHTILE_INLINE void store_u(uint32_t* p, Vu x) { vst1q_u32(p, x.v); }
FLASHTILE_INLINE Vu as_vu(Vf a) { return {vreinterpretq_u32_f32(a.v)}; }
FLASHTILE_INLINE Vf as_vf(Vu a) { return {vreinterpretq_f32_u32(a.v)}; }
FLASHTILE_INLINE Vu load_u_partial(const uint32_t* p, int64_t count) {
  const int n = clamp_count(count);
  uint32_t words[kLanes] = {};
  for (int i = 0; i < n; ++i) words[i] = p[i];
  return load_u(words);
}
FLASHTILE_INLINE void store_u_partial(uint32_t* p, Vu x, int64_t count) {
  uint32_t words[kLanes];
  store_u(words, x);
  const int n = clamp_count(count);
  for (int i = 0; i < n; ++i) p[i] = words[i];
}
FLASHTILE_INLINE uint16x4_t load_words_partial(const uint16_t* p, int64_t count) {
  uint16_t words[kLanes] = {};
  const int n = clamp_count(count);
  for (int i = 0; i < n; ++i) words[i] = p[i];
  return vld1_u16(words);
}
FLASHTILE_INLINE void store_words_partial(uint16_t* p, uint16x4_t x, int64_t count) {
  uint16_t words[kLanes];
  vst1_u16(words, x);
  const int n = clamp_count(count);
  for (int i = 0; i < n; ++i) p[i] = words[i];
}
FLASHTILE_INLINE Vu load_u16(const uint16_t* p) { return {vmovl_u16(vld1_u16(p))}; }
FLASHTILE_INLINE Vu load_u16_partial(const uint16_t* p, int64_t count) {
  return {vmovl_u16(load_words_partial(p, count))};
}
FLASHTILE_INLINE Vu load_u8_partial(const uint8_t* p, int64_t count) {
  uint16_t words[kLanes] = {};
  for (int64_t i = 0; i < count && i < kLanes; ++i) words[i] = p[i];
  return load_u16(words);
}
FLASHTILE_INLINE Vu load_u8(const uint8_t* p) {
  uint32_t bytes;
  __builtin_memcpy(&bytes, p, sizeof(bytes));
  return {vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes))))};
}
/// Stores the low half of each lane.
FLASHTILE_INLINE void store_u16(uint16_t* p, Vu x) { vst1_u16(p, vmovn_u32(x.v)); }
FLASHTILE_INLINE void store_u16_partial(uint16_t* p, Vu x, int64_t count) {
  store_words_partial(p, vmovn_u32(x.v), count);
}
/// Lanes 4 g .. 4 g + 3 go to p + g * stride, for g < kLanes / 4.
FLASHTILE_INLINE void store_u_groups(uint32_t* p, int64_t /*stride*/, Vu x) { store_u(p, x); }

FLASHTILE_INLINE Vu operator+(Vu a, Vu b) { return {vaddq_u32(a.v, b.v)}; }
FLASHTILE_INLINE Vu operator-(Vu a, Vu b) { return {vsubq_u32(a.v, b.v)}; }
FLASHTILE_INLINE Vu operator^(Vu a, Vu b) { return {veorq_u32(a.v, b.v)}; }
FLASHTILE_INLINE Vu operator&(Vu a, Vu b) { return {vandq_u32(a.v, b.v)}; }
FLASHTILE_INLINE Vu operator|(Vu a, Vu b) { return {vorrq_u32(a.v, b.v)}; }
FLASHTILE_INLINE Vu operator<<(Vu a, int n) { return {vshlq_u32(a.v, vdupq_n_s32(n))}; }
FLASHTILE_INLINE Vu operator>>(Vu a, int n) { return {vshlq_u32(a.v, vdupq_n_s32(-n))}; }
FLASHTILE_INLINE Vu mul_lo(Vu a, Vu b) { return {vmulq_u32(a.v, b.v)}; }
FLASHTILE_INLINE Vu mul_hi(Vu a, Vu b) {
  const uint64x2_t low = vmull_u32(vget_low_u32(a.v), vget_low_u32(b.v));
  const uint64x2_t high = vmull_high_u32(a.v, b.v);
  return {vuzp2q_u32(vreinterpretq_u32_u64(low), vreinterpretq_u32_u64(high))};
}
FLASHTILE_INLINE Mf operator==(Vu a, Vu b) { return {vceqq_u32(a.v, b.v)}; }
FLASHTILE_INLINE Mf less_i32(Vu a, Vu b) {
  return {vcltq_s32(vreinterpretq_s32_u32(a.v), vreinterpretq_s32_u32(b.v))};
}
FLASHTILE_INLINE Vu select(Mf m, Vu if_set, Vu if_clear) {
  return {vbslq_u32(m.m, if_set.v, if_clear.v)};
}
FLASHTILE_INLINE Vu round_to_i32(Vf a) { return {vreinterpretq_u32_s32(vcvtnq_s32_f32(a.v))}; }
FLASHTILE_INLINE Vf i32_to_float(Vu a) { return {vcvtq_f32_s32(vreinterpretq_s32_u32(a.v))}; }

// ---- halves in memory ----

FLASHTILE_INLINE Vf load(const F16* p) {
  return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)))};
}
FLASHTILE_INLINE Vf load_partial(const F16* p, int64_t count) {
  return {vcvt_f32_f16(vreinterpret_f16_u16(load_words_partial(&p->bits, count)))};
}
FLASHTILE_INLINE void store(F16* p, Vf x) {
  vst1_u16(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32(x.v)));
}
FLASHTILE_INLINE void store_partial(F16* p, Vf x, int64_t count) {
  store_words_partial(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32(x.v)), count);
}

// ---- across lanes ----

/// Halves are folded onto each other: 2, 1.
FLASHTILE_INLINE float reduce_add(Vf a) {
  const float32x2_t x2 = vadd_f32(vget_low_f32(a.v), vget_high_f32(a.v));
  return vget_lane_f32(x2, 0) + vget_lane_f32(x2, 1);
}
FLASHTILE_INLINE float reduce_max(Vf a) {
  const Vf x2 = max(a, {vextq_f32(a.v, a.v, 2)});
  const Vf x1 = max(x2, {vextq_f32(x2.v, x2.v, 1)});
  return vgetq_lane_f32(x1.v, 0);
}

/// x[i] lane j <-> x[j] lane i.
FLASHTILE_INLINE void transpose(Vu (&x)[4]) {
  const uint32x4x2_t top = vtrnq_u32(x[0].v, x[1].v);  // 2 x 2 blocks of words
  const uint32x4x2_t bottom = vtrnq_u32(x[2].v, x[3].v);
  x[0].v = vcombine_u32(vget_low_u32(top.val[0]), vget_low_u32(bottom.val[0]));
  x[1].v = vcombine_u32(vget_low_u32(top.val[1]), vget_low_u32(bottom.val[1]));
  x[2].v = vcombine_u32(vget_high_u32(top.val[0]), vget_high_u32(bottom.val[0]));
  x[3].v = vcombine_u32(vget_high_u32(top.val[1]), vget_high_u32(bottom.val[1]));
}

}  // namespace flashtile::cpu::FLASHTILE_ISA

#include "cpu/simd/powers.hpp"
