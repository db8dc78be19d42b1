// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sums across the lanes of kLanes vectors.

#include "cpu/simd/simd.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

#if defined(__AVX512F__)
/// Lane i: the sum of rows[i]. Two vectors become one at each step, which takes half the shuffles
/// of a transposition.
FLASHTILE_INLINE Vf row_sums(const Vf* rows) {
  __m512 x[16];
  FLASHTILE_UNROLL
  for (int i = 0; i < 16; ++i) {  // parts of 128 bits: of rows[p] two, then of rows[p + 4]
    if ((i & 4) != 0) continue;
    x[i] = _mm512_add_ps(_mm512_shuffle_f32x4(rows[i].v, rows[i + 4].v, 0x44),
                         _mm512_shuffle_f32x4(rows[i].v, rows[i + 4].v, 0xEE));
  }
  FLASHTILE_UNROLL
  for (int i = 0; i < 4; ++i) {  // part n: of rows[i + 4 n]
    x[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x[i], x[i + 8], 0x88),
                         _mm512_shuffle_f32x4(x[i], x[i + 8], 0xDD));
  }
  FLASHTILE_UNROLL
  for (int i = 0; i < 4; i += 2) {  // within a part: of rows i, i + 1, i, i + 1
    x[i] = _mm512_add_ps(_mm512_unpacklo_ps(x[i], x[i + 1]), _mm512_unpackhi_ps(x[i], x[i + 1]));
  }
  return {_mm512_add_ps(_mm512_shuffle_ps(x[0], x[2], 0x44), _mm512_shuffle_ps(x[0], x[2], 0xEE))};
}
#else
/// Lane i: the sum of rows[i].
FLASHTILE_INLINE Vf row_sums(const Vf* rows) {
  Vu block[kLanes];
  for (int i = 0; i < kLanes; ++i) block[i] = as_vu(rows[i]);
  transpose(block);
  Vf sum[kLanes];
  for (int i = 0; i < kLanes; ++i) sum[i] = as_vf(block[i]);
  for (int step = kLanes / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) sum[i] = sum[i] + sum[i + step];
  }
  return sum[0];
}
#endif

}  // namespace flashtile::cpu::FLASHTILE_ISA
