// SPDX-License-Identifier: Apache-2.0
#pragma once

// AVX-512 with the bfloat16 dot product. See simd.hpp for the contract.

#include "cpu/simd/simd_avx512.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Pairs of bfloat16, one pair a lane, the element with the lower index in the low half.
/// c + a.low * b.low + a.high * b.high; subnormals count as zero.
FLASHTILE_INLINE Vf dot_pairs(Vu a, Vu b, Vf c) {
#if defined(__clang__) && __clang_major__ < 18
  // The optimiser of clang 16 runs out of stack on casts to vectors of bfloat16.
  asm("vdpbf16ps %2, %1, %0" : "+v"(c.v) : "v"(a.v), "v"(b.v));
  return c;
#else
  return {_mm512_dpbf16_ps(c.v, (__m512bh)a.v, (__m512bh)b.v)};
#endif
}

/// 2 kLanes bfloat16 in their order, neighbours in a lane; subnormals become zero.
FLASHTILE_INLINE Vu round_neighbours(Vf first, Vf second) {
  __m512i halves;
#if defined(__clang__) && __clang_major__ < 18
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(halves) : "v"(second.v), "v"(first.v));
#else
  const __m512bh rounded = _mm512_cvtne2ps_pbh(second.v, first.v);
  __builtin_memcpy(&halves, &rounded, sizeof(halves));
#endif
  return {halves};
}

/// One pair a lane; subnormals become zero.
FLASHTILE_INLINE Vu round_to_pairs(Vf low, Vf high) {
  const Vu words = iota_u() + ((iota_u() + broadcast_u(kLanes)) << 16);
  return {_mm512_permutexvar_epi16(words.v, round_neighbours(low, high).v)};
}

FLASHTILE_INLINE void store_flush(Bf16* p, Vf x) {
  const __m256bh y = _mm512_cvtneps_pbh(x.v);
  __builtin_memcpy(p, &y, sizeof(y));
}

/// Lane i: the sum of the lanes of x[i], of 16.
FLASHTILE_INLINE Vf row_sums(const Vf* x) {
  __m512 t[8];
  FLASHTILE_UNROLL
  for (int i = 0; i < 8; ++i) {  // of two rows, in turns
    const __m512 a = x[2 * i].v;
    const __m512 b = x[2 * i + 1].v;
    t[i] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  }
  FLASHTILE_UNROLL
  for (int i = 0; i < 4; ++i) {  // of four rows in each 128 bits
    const __m512d a = _mm512_castps_pd(t[2 * i]);
    const __m512d b = _mm512_castps_pd(t[2 * i + 1]);
    t[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  FLASHTILE_UNROLL
  for (int count = 2; count > 0; count /= 2) {  // parts of 128 bits
    FLASHTILE_UNROLL
    for (int i = 0; i < count; ++i) {
      t[i] = _mm512_add_ps(_mm512_shuffle_f32x4(t[2 * i], t[2 * i + 1], 0x88),
                           _mm512_shuffle_f32x4(t[2 * i], t[2 * i + 1], 0xDD));
    }
  }
  return {t[0]};
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
