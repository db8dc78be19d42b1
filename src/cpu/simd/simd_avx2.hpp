// SPDX-License-Identifier: Apache-2.0
#pragma once

// AVX2 with FMA and F16C: eight floats, masks are vectors. See simd.hpp for the contract.

#include <immintrin.h>

#include "cpu/simd/types.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

inline constexpr int kLanes = 8;
// Rows of a GEMM tile that is 1, 2, ... vectors wide: what the registers hold.
inline constexpr int kTileVecs = 2;
inline constexpr int kTileRows[kTileVecs] = {8, 6};
inline constexpr bool kHasBf16Dot = false;
inline constexpr bool kHasTiles = false;

struct Vf {
  __m256 v;
};
struct Vu {
  __m256i v;
};
struct Mf {
  __m256 m;  ///< lanes of all ones or all zeros
};

// ---- masks ----

FLASHTILE_INLINE int clamp_count(int64_t count) {
  return count >= kLanes ? kLanes : count <= 0 ? 0 : static_cast<int>(count);
}
FLASHTILE_INLINE __m256i lane_mask(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(clamp_count(count)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
FLASHTILE_INLINE Mf first_lanes(int64_t count) { return {_mm256_castsi256_ps(lane_mask(count))}; }
FLASHTILE_INLINE Mf operator&(Mf a, Mf b) { return {_mm256_and_ps(a.m, b.m)}; }
FLASHTILE_INLINE Mf operator|(Mf a, Mf b) { return {_mm256_or_ps(a.m, b.m)}; }
FLASHTILE_INLINE Mf operator^(Mf a, Mf b) { return {_mm256_xor_ps(a.m, b.m)}; }
FLASHTILE_INLINE Mf operator~(Mf a) {
  return {_mm256_xor_ps(a.m, _mm256_castsi256_ps(_mm256_set1_epi32(-1)))};
}
FLASHTILE_INLINE uint32_t bits(Mf a) { return static_cast<uint32_t>(_mm256_movemask_ps(a.m)); }
FLASHTILE_INLINE bool any(Mf a) { return bits(a) != 0; }
FLASHTILE_INLINE bool all(Mf a) { return bits(a) == 0xFF; }

// ---- floats ----

FLASHTILE_INLINE Vf zero() { return {_mm256_setzero_ps()}; }
FLASHTILE_INLINE Vf broadcast(float x) { return {_mm256_set1_ps(x)}; }
FLASHTILE_INLINE Vf load(const float* p) { return {_mm256_loadu_ps(p)}; }
FLASHTILE_INLINE void store(float* p, Vf x) { _mm256_storeu_ps(p, x.v); }
FLASHTILE_INLINE Vf load_partial(const float* p, int64_t count) {
  return {_mm256_maskload_ps(p, lane_mask(count))};
}
FLASHTILE_INLINE void store_partial(float* p, Vf x, int64_t count) {
  _mm256_maskstore_ps(p, lane_mask(count), x.v);
}

FLASHTILE_INLINE Vf operator+(Vf a, Vf b) { return {_mm256_add_ps(a.v, b.v)}; }
FLASHTILE_INLINE Vf operator-(Vf a, Vf b) { return {_mm256_sub_ps(a.v, b.v)}; }
FLASHTILE_INLINE Vf operator*(Vf a, Vf b) { return {_mm256_mul_ps(a.v, b.v)}; }
FLASHTILE_INLINE Vf operator/(Vf a, Vf b) { return {_mm256_div_ps(a.v, b.v)}; }
FLASHTILE_INLINE Vf operator-(Vf a) { return {_mm256_xor_ps(a.v, _mm256_set1_ps(-0.0f))}; }
FLASHTILE_INLINE Vf fma(Vf a, Vf b, Vf c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
FLASHTILE_INLINE Vf fnma(Vf a, Vf b, Vf c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }
FLASHTILE_INLINE Vf min(Vf a, Vf b) { return {_mm256_min_ps(a.v, b.v)}; }
FLASHTILE_INLINE Vf max(Vf a, Vf b) { return {_mm256_max_ps(a.v, b.v)}; }
FLASHTILE_INLINE Vf abs(Vf a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
FLASHTILE_INLINE Vf sqrt(Vf a) { return {_mm256_sqrt_ps(a.v)}; }
FLASHTILE_INLINE Vf round_nearest(Vf a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
FLASHTILE_INLINE Vf floor(Vf a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
}

FLASHTILE_INLINE Mf operator<(Vf a, Vf b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
FLASHTILE_INLINE Mf operator<=(Vf a, Vf b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)}; }
FLASHTILE_INLINE Mf operator>(Vf a, Vf b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
FLASHTILE_INLINE Mf operator>=(Vf a, Vf b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)}; }
FLASHTILE_INLINE Mf operator==(Vf a, Vf b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
FLASHTILE_INLINE Mf operator!=(Vf a, Vf b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_NEQ_UQ)}; }
FLASHTILE_INLINE Vf select(Mf m, Vf if_set, Vf if_clear) {
  return {_mm256_blendv_ps(if_clear.v, if_set.v, m.m)};
}

// ---- unsigned 32-bit integers ----

FLASHTILE_INLINE Vu broadcast_u(uint32_t x) { return {_mm256_set1_epi32(static_cast<int>(x))}; }
FLASHTILE_INLINE Vu iota_u() { return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)}; }
FLASHTILE_INLINE Vu load_u(const uint32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
FLASHTILE_INLINE void store_u(uint32_t* p, Vu x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.v);
}
FLASHTILE_INLINE Vu load_u_partial(const uint32_t* p, int64_t count) {
  return {_mm256_maskload_epi32(reinterpret_cast<const int*>(p), lane_mask(count))};
}
FLASHTILE_INLINE void store_u_partial(uint32_t* p, Vu x, int64_t count) {
  _mm256_maskstore_epi32(reinterpret_cast<int*>(p), lane_mask(count), x.v);
}
FLASHTILE_INLINE Vu load_u16(const uint16_t* p) {
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
/// `count` 16-bit words by way of the stack: AVX2 has no masked loads of that size.
FLASHTILE_INLINE __m128i load_words_partial(const void* p, int64_t count) {
  uint16_t words[kLanes] = {};
  const uint16_t* from = static_cast<const uint16_t*>(p);
  const int n = clamp_count(count);
  for (int i = 0; i < n; ++i) words[i] = from[i];
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(words));
}
FLASHTILE_INLINE void store_words_partial(void* p, __m128i x, int64_t count) {
  uint16_t words[kLanes];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(words), x);
  uint16_t* to = static_cast<uint16_t*>(p);
  const int n = clamp_count(count);
  for (int i = 0; i < n; ++i) to[i] = words[i];
}
FLASHTILE_INLINE Vu load_u16_partial(const uint16_t* p, int64_t count) {
  return {_mm256_cvtepu16_epi32(load_words_partial(p, count))};
}
FLASHTILE_INLINE Vu load_u8(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
}
FLASHTILE_INLINE Vu load_u8_partial(const uint8_t* p, int64_t count) {
  uint8_t bytes[kLanes] = {};
  for (int64_t i = 0; i < count && i < kLanes; ++i) bytes[i] = p[i];
  return load_u8(bytes);
}
/// The low halves of the lanes.
FLASHTILE_INLINE __m128i low_words(Vu x) {
  const __m256i low = _mm256_and_si256(x.v, _mm256_set1_epi32(0xFFFF));
  const __m256i packed = _mm256_packus_epi32(low, low);  // words 0..3 twice, then 4..7 twice
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
/// Stores the low half of each lane.
FLASHTILE_INLINE void store_u16(uint16_t* p, Vu x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), low_words(x));
}
FLASHTILE_INLINE void store_u16_partial(uint16_t* p, Vu x, int64_t count) {
  store_words_partial(p, low_words(x), count);
}
/// Lanes 4 g .. 4 g + 3 go to p + g * stride, for g < kLanes / 4.
FLASHTILE_INLINE void store_u_groups(uint32_t* p, int64_t stride, Vu x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(x.v));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + stride), _mm256_extracti128_si256(x.v, 1));
}

FLASHTILE_INLINE Vu operator+(Vu a, Vu b) { return {_mm256_add_epi32(a.v, b.v)}; }
FLASHTILE_INLINE Vu operator-(Vu a, Vu b) { return {_mm256_sub_epi32(a.v, b.v)}; }
FLASHTILE_INLINE Vu operator^(Vu a, Vu b) { return {_mm256_xor_si256(a.v, b.v)}; }
FLASHTILE_INLINE Vu operator&(Vu a, Vu b) { return {_mm256_and_si256(a.v, b.v)}; }
FLASHTILE_INLINE Vu operator|(Vu a, Vu b) { return {_mm256_or_si256(a.v, b.v)}; }
FLASHTILE_INLINE Vu operator<<(Vu a, int n) {
  return {_mm256_sll_epi32(a.v, _mm_cvtsi32_si128(n))};
}
FLASHTILE_INLINE Vu operator>>(Vu a, int n) {
  return {_mm256_srl_epi32(a.v, _mm_cvtsi32_si128(n))};
}
FLASHTILE_INLINE Vu mul_lo(Vu a, Vu b) { return {_mm256_mullo_epi32(a.v, b.v)}; }
FLASHTILE_INLINE Vu mul_hi(Vu a, Vu b) {
  const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(a.v, b.v), 32);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a.v, 32), _mm256_srli_epi64(b.v, 32));
  return {_mm256_blend_epi32(even, odd, 0xAA)};
}
FLASHTILE_INLINE Mf operator==(Vu a, Vu b) {
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(a.v, b.v))};
}
FLASHTILE_INLINE Mf less_i32(Vu a, Vu b) {
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(b.v, a.v))};
}
FLASHTILE_INLINE Vu as_vu(Vf a) { return {_mm256_castps_si256(a.v)}; }
FLASHTILE_INLINE Vf as_vf(Vu a) { return {_mm256_castsi256_ps(a.v)}; }
FLASHTILE_INLINE Vu select(Mf m, Vu if_set, Vu if_clear) {
  return as_vu(select(m, as_vf(if_set), as_vf(if_clear)));
}
FLASHTILE_INLINE Vu round_to_i32(Vf a) { return {_mm256_cvtps_epi32(a.v)}; }
FLASHTILE_INLINE Vf i32_to_float(Vu a) { return {_mm256_cvtepi32_ps(a.v)}; }

// ---- halves in memory ----

FLASHTILE_INLINE Vf load(const F16* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
FLASHTILE_INLINE Vf load_partial(const F16* p, int64_t count) {
  return {_mm256_cvtph_ps(load_words_partial(p, count))};
}
FLASHTILE_INLINE void store(F16* p, Vf x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
FLASHTILE_INLINE void store_partial(F16* p, Vf x, int64_t count) {
  store_words_partial(p, _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                      count);
}

// ---- across lanes ----

/// Halves are folded onto each other: 4, 2, 1.
FLASHTILE_INLINE float reduce_add(Vf a) {
  const __m128 x4 = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 x2 = _mm_add_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_add_ss(x2, _mm_shuffle_ps(x2, x2, 1)));
}
FLASHTILE_INLINE float reduce_max(Vf a) {
  const __m128 x4 = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 x2 = _mm_max_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_max_ss(x2, _mm_shuffle_ps(x2, x2, 1)));
}

/// x[i] lane j <-> x[j] lane i.
FLASHTILE_INLINE void transpose(Vu (&x)[8]) {
  __m256i t[8];
  FLASHTILE_UNROLL
  for (int i = 0; i < 8; i += 2) {  // 2 x 2 blocks of words
    t[i] = _mm256_unpacklo_epi32(x[i].v, x[i + 1].v);
    t[i + 1] = _mm256_unpackhi_epi32(x[i].v, x[i + 1].v);
  }
  __m256i q[8];
  FLASHTILE_UNROLL
  for (int i = 0; i < 8; i += 4) {  // q[i + j]: rows i .. i + 3 of columns j and 4 + j
    q[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
    q[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
    q[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
    q[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  FLASHTILE_UNROLL
  for (int j = 0; j < 4; ++j) {  // 2 x 2 transpose of the 128-bit halves
    x[j].v = _mm256_permute2x128_si256(q[j], q[j + 4], 0x20);
    x[j + 4].v = _mm256_permute2x128_si256(q[j], q[j + 4], 0x31);
  }
}

}  // namespace flashtile::cpu::FLASHTILE_ISA

#include "cpu/simd/powers.hpp"
