// SPDX-License-Identifier: Apache-2.0
#pragma once

// AVX-512 F, BW, DQ, VL: sixteen floats, mask registers. See simd.hpp for the contract.

// GCC 12's header makes its undefined vectors as `x = x`, and warns of that itself.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include "cpu/simd/types.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

inline constexpr int kLanes = 16;
// Rows of a GEMM tile that is 1, 2, ... vectors wide: what the registers hold.
inline constexpr int kTileVecs = 4;
inline constexpr int kTileRows[kTileVecs] = {8, 8, 8, 6};
#if defined(__AVX512BF16__)
inline constexpr bool kHasBf16Dot = true;
#else
inline constexpr bool kHasBf16Dot = false;
#endif
#if defined(__AMX_BF16__)
inline constexpr bool kHasTiles = true;
#else
inline constexpr bool kHasTiles = false;
#endif

struct Vf {
  __m512 v;
};
struct Vu {
  __m512i v;
};
struct Mf {
  __mmask16 m;
};

// ---- masks ----

FLASHTILE_INLINE Mf first_lanes(int64_t count) {
  const uint32_t n = count >= kLanes ? 16u : count <= 0 ? 0u : static_cast<uint32_t>(count);
  return {static_cast<__mmask16>((1u << n) - 1u)};
}
FLASHTILE_INLINE Mf operator&(Mf a, Mf b) { return {_kand_mask16(a.m, b.m)}; }
FLASHTILE_INLINE Mf operator|(Mf a, Mf b) { return {_kor_mask16(a.m, b.m)}; }
FLASHTILE_INLINE Mf operator^(Mf a, Mf b) { return {_kxor_mask16(a.m, b.m)}; }
FLASHTILE_INLINE Mf operator~(Mf a) { return {_knot_mask16(a.m)}; }
FLASHTILE_INLINE uint32_t bits(Mf a) { return a.m; }
FLASHTILE_INLINE bool any(Mf a) { return a.m != 0; }
FLASHTILE_INLINE bool all(Mf a) { return a.m == 0xFFFF; }

// ---- floats ----

FLASHTILE_INLINE Vf zero() { return {_mm512_setzero_ps()}; }
FLASHTILE_INLINE Vf broadcast(float x) { return {_mm512_set1_ps(x)}; }
FLASHTILE_INLINE Vf load(const float* p) { return {_mm512_loadu_ps(p)}; }
FLASHTILE_INLINE void store(float* p, Vf x) { _mm512_storeu_ps(p, x.v); }
FLASHTILE_INLINE Vf load_partial(const float* p, int64_t count) {
  return {_mm512_maskz_loadu_ps(first_lanes(count).m, p)};
}
FLASHTILE_INLINE void store_partial(float* p, Vf x, int64_t count) {
  _mm512_mask_storeu_ps(p, first_lanes(count).m, x.v);
}

FLASHTILE_INLINE Vf operator+(Vf a, Vf b) { return {_mm512_add_ps(a.v, b.v)}; }
FLASHTILE_INLINE Vf operator-(Vf a, Vf b) { return {_mm512_sub_ps(a.v, b.v)}; }
FLASHTILE_INLINE Vf operator*(Vf a, Vf b) { return {_mm512_mul_ps(a.v, b.v)}; }
FLASHTILE_INLINE Vf operator/(Vf a, Vf b) { return {_mm512_div_ps(a.v, b.v)}; }
FLASHTILE_INLINE Vf operator-(Vf a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
FLASHTILE_INLINE Vf fma(Vf a, Vf b, Vf c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
FLASHTILE_INLINE Vf fnma(Vf a, Vf b, Vf c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
FLASHTILE_INLINE Vf min(Vf a, Vf b) { return {_mm512_min_ps(a.v, b.v)}; }
FLASHTILE_INLINE Vf max(Vf a, Vf b) { return {_mm512_max_ps(a.v, b.v)}; }
FLASHTILE_INLINE Vf abs(Vf a) { return {_mm512_abs_ps(a.v)}; }
FLASHTILE_INLINE Vf sqrt(Vf a) { return {_mm512_sqrt_ps(a.v)}; }
FLASHTILE_INLINE Vf round_nearest(Vf a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
FLASHTILE_INLINE Vf floor(Vf a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
}
/// Whether nearest_parts and scale_pow2 take any x, infinite ones too.
inline constexpr bool kScalesAnyPower = true;
FLASHTILE_INLINE NearestParts<Vf> nearest_parts(Vf x) {
  // A rest of 0 for infinities, which leaves them whole.
  const Vf rest{_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  return {x - rest, rest};
}

/// x * 2^n for a whole number n in [kZeroPower, 128]; 2^kZeroPower makes a number in [0.5, 2] zero.
inline constexpr float kZeroPower = -160.0f;
FLASHTILE_INLINE Vf scale_pow2(Vf x, Vf n) { return {_mm512_scalef_ps(x.v, n.v)}; }

FLASHTILE_INLINE Mf operator<(Vf a, Vf b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
FLASHTILE_INLINE Mf operator<=(Vf a, Vf b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
FLASHTILE_INLINE Mf operator>(Vf a, Vf b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
FLASHTILE_INLINE Mf operator>=(Vf a, Vf b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
FLASHTILE_INLINE Mf operator==(Vf a, Vf b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
FLASHTILE_INLINE Mf operator!=(Vf a, Vf b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_NEQ_UQ)}; }
FLASHTILE_INLINE Vf select(Mf m, Vf if_set, Vf if_clear) {
  return {_mm512_mask_blend_ps(m.m, if_clear.v, if_set.v)};
}

// ---- unsigned 32-bit integers ----

FLASHTILE_INLINE Vu broadcast_u(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
FLASHTILE_INLINE Vu iota_u() {
  return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}
FLASHTILE_INLINE Vu load_u(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
FLASHTILE_INLINE void store_u(uint32_t* p, Vu x) { _mm512_storeu_si512(p, x.v); }
FLASHTILE_INLINE Vu load_u_partial(const uint32_t* p, int64_t count) {
  return {_mm512_maskz_loadu_epi32(first_lanes(count).m, p)};
}
FLASHTILE_INLINE void store_u_partial(uint32_t* p, Vu x, int64_t count) {
  _mm512_mask_storeu_epi32(p, first_lanes(count).m, x.v);
}
FLASHTILE_INLINE Vu load_u16(const uint16_t* p) {
  return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
FLASHTILE_INLINE Vu load_u16_partial(const uint16_t* p, int64_t count) {
  return {_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(count).m, p))};
}
FLASHTILE_INLINE Vu load_u8(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
FLASHTILE_INLINE Vu load_u8_partial(const uint8_t* p, int64_t count) {
  return {_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(first_lanes(count).m, p))};
}
/// Stores the low half of each lane.
FLASHTILE_INLINE void store_u16(uint16_t* p, Vu x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x.v));
}
FLASHTILE_INLINE void store_u16_partial(uint16_t* p, Vu x, int64_t count) {
  _mm256_mask_storeu_epi16(p, first_lanes(count).m, _mm512_cvtepi32_epi16(x.v));
}
/// Lanes 4 g .. 4 g + 3 go to p + g * stride, for g < kLanes / 4.
FLASHTILE_INLINE void store_u_groups(uint32_t* p, int64_t stride, Vu x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_castsi512_si128(x.v));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + stride), _mm512_extracti32x4_epi32(x.v, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 2 * stride), _mm512_extracti32x4_epi32(x.v, 2));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 3 * stride), _mm512_extracti32x4_epi32(x.v, 3));
}

FLASHTILE_INLINE Vu operator+(Vu a, Vu b) { return {_mm512_add_epi32(a.v, b.v)}; }
FLASHTILE_INLINE Vu operator-(Vu a, Vu b) { return {_mm512_sub_epi32(a.v, b.v)}; }
FLASHTILE_INLINE Vu operator^(Vu a, Vu b) { return {_mm512_xor_si512(a.v, b.v)}; }
FLASHTILE_INLINE Vu operator&(Vu a, Vu b) { return {_mm512_and_si512(a.v, b.v)}; }
FLASHTILE_INLINE Vu operator|(Vu a, Vu b) { return {_mm512_or_si512(a.v, b.v)}; }
FLASHTILE_INLINE Vu operator<<(Vu a, int n) {
  return {_mm512_sll_epi32(a.v, _mm_cvtsi32_si128(n))};
}
FLASHTILE_INLINE Vu operator>>(Vu a, int n) {
  return {_mm512_srl_epi32(a.v, _mm_cvtsi32_si128(n))};
}
FLASHTILE_INLINE Vu mul_lo(Vu a, Vu b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
FLASHTILE_INLINE Vu mul_hi(Vu a, Vu b) {
  const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(a.v, b.v), 32);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32));
  return {_mm512_mask_blend_epi32(0xAAAA, even, odd)};
}
FLASHTILE_INLINE Mf operator==(Vu a, Vu b) { return {_mm512_cmpeq_epi32_mask(a.v, b.v)}; }
FLASHTILE_INLINE Mf less_i32(Vu a, Vu b) { return {_mm512_cmplt_epi32_mask(a.v, b.v)}; }
FLASHTILE_INLINE Vu select(Mf m, Vu if_set, Vu if_clear) {
  return {_mm512_mask_blend_epi32(m.m, if_clear.v, if_set.v)};
}
FLASHTILE_INLINE Vu as_vu(Vf a) { return {_mm512_castps_si512(a.v)}; }
FLASHTILE_INLINE Vf as_vf(Vu a) { return {_mm512_castsi512_ps(a.v)}; }
FLASHTILE_INLINE Vu round_to_i32(Vf a) { return {_mm512_cvtps_epi32(a.v)}; }
FLASHTILE_INLINE Vf i32_to_float(Vu a) { return {_mm512_cvtepi32_ps(a.v)}; }

// ---- halves in memory ----

FLASHTILE_INLINE Vf load(const F16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
FLASHTILE_INLINE Vf load_partial(const F16* p, int64_t count) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(count).m, p))};
}
FLASHTILE_INLINE void store(F16* p, Vf x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
FLASHTILE_INLINE void store_partial(F16* p, Vf x, int64_t count) {
  _mm256_mask_storeu_epi16(p, first_lanes(count).m,
                           _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// ---- across lanes ----

/// Halves are folded onto each other: 8, 4, 2, 1.
FLASHTILE_INLINE float reduce_add(Vf a) {
  const __m256 x8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 x4 = _mm_add_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps(x8, 1));
  const __m128 x2 = _mm_add_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_add_ss(x2, _mm_shuffle_ps(x2, x2, 1)));
}
FLASHTILE_INLINE float reduce_max(Vf a) {
  const __m256 x8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 x4 = _mm_max_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps(x8, 1));
  const __m128 x2 = _mm_max_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_max_ss(x2, _mm_shuffle_ps(x2, x2, 1)));
}

/// x[i] lane j <-> x[j] lane i.
FLASHTILE_INLINE void transpose(Vu (&x)[16]) {
  __m512i t[16];
  FLASHTILE_UNROLL
  for (int i = 0; i < 16; i += 2) {  // 2 x 2 blocks of words
    t[i] = _mm512_unpacklo_epi32(x[i].v, x[i + 1].v);
    t[i + 1] = _mm512_unpackhi_epi32(x[i].v, x[i + 1].v);
  }
  __m512i q[16];
  FLASHTILE_UNROLL
  for (int i = 0; i < 16; i += 4) {  // q[i + j]: rows i..i+3 of column 4 * part + j
    q[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    q[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    q[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    q[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  FLASHTILE_UNROLL
  for (int j = 0; j < 4; ++j) {  // 4 x 4 transpose of the 128-bit parts
    const __m512i lo01 = _mm512_shuffle_i32x4(q[j], q[j + 4], 0x88);
    const __m512i hi01 = _mm512_shuffle_i32x4(q[j], q[j + 4], 0xDD);
    const __m512i lo23 = _mm512_shuffle_i32x4(q[j + 8], q[j + 12], 0x88);
    const __m512i hi23 = _mm512_shuffle_i32x4(q[j + 8], q[j + 12], 0xDD);
    x[j].v = _mm512_shuffle_i32x4(lo01, lo23, 0x88);
    x[j + 8].v = _mm512_shuffle_i32x4(lo01, lo23, 0xDD);
    x[j + 4].v = _mm512_shuffle_i32x4(hi01, hi23, 0x88);
    x[j + 12].v = _mm512_shuffle_i32x4(hi01, hi23, 0xDD);
  }
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
