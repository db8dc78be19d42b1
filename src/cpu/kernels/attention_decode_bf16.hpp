// SPDX-License-Identifier: Apache-2.0
#pragma once

// The products of decoding for bf16 keys where there is a dot product of bf16 pairs. Nothing is
// widened: pairs of K are turned, 16 keys to the lanes of a register, and two rows of V are
// interleaved and meet a pair of weights, rounded to bf16. That leaves O in another order of
// columns, which `restore_columns` puts right at the end.

#include "cpu/simd/simd.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Columns that interleaving mixes.
inline constexpr int64_t kPairColumns = 32;

FLASHTILE_INLINE Vu load_pairs(const char* row) {
  return load_u(reinterpret_cast<const uint32_t*>(row));
}

/// s[r * s_ld + u] = alpha q_r . k_u for kRows rows and 16 keys; dim is a multiple of 32. q has
/// rows of q_bytes bytes. A score is one chain of pairs, as in gemm_bf16.hpp.
template <int kRows>
FLASHTILE_INLINE void score_pairs(const char* const* k_rows, int64_t offset, const char* q,
                                  int64_t q_bytes, int64_t dim, float alpha, float* s, int64_t s_ld,
                                  const char* const* ahead) {
  Vf sum[static_cast<size_t>(kRows)];
  FLASHTILE_UNROLL
  for (int r = 0; r < kRows; ++r) sum[r] = zero();
  for (int64_t at = 0; at < 2 * dim; at += 64) {
    Vu x[16];
    FLASHTILE_UNROLL
    for (int u = 0; u < 16; ++u) {
      if (ahead != nullptr) __builtin_prefetch(ahead[u] + at, 0, 2);
      x[u] = load_pairs(k_rows[u] + offset + at);
    }
    transpose(x);
    FLASHTILE_UNROLL
    for (int c = 0; c < 16; ++c) {
      FLASHTILE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const auto* pair = reinterpret_cast<const uint32_t*>(q + r * q_bytes + at) + c;
        sum[r] = dot_pairs(x[c], broadcast_u(*pair), sum[r]);
      }
    }
  }
  FLASHTILE_UNROLL
  for (int r = 0; r < kRows; ++r) store(s + r * s_ld, sum[r] * broadcast(alpha));
}

/// O += P V for 16 keys, kRows rows and kBlocks * 32 columns from byte `column` of a row on; p has
/// rows of p_ld pairs.
template <int kRows, int kBlocks>
FLASHTILE_INLINE void add_pairs(const char* const* v_rows, int64_t offset, int64_t column,
                                const uint32_t* p, int64_t p_ld, float* out, int64_t out_ld,
                                const char* const* ahead) {
  Vf sum[static_cast<size_t>(kRows)][static_cast<size_t>(2 * kBlocks)];
  FLASHTILE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    FLASHTILE_UNROLL
    for (int c = 0; c < 2 * kBlocks; ++c) sum[r][c] = load(out + r * out_ld + c * kLanes);
  }
  FLASHTILE_UNROLL
  for (int u = 0; u < 8; ++u) {
    const char* first = v_rows[2 * u] + offset + column;
    const char* second = v_rows[2 * u + 1] + offset + column;
    FLASHTILE_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      if (ahead != nullptr) {
        __builtin_prefetch(ahead[2 * u] + column + b * 64, 0, 2);
        __builtin_prefetch(ahead[2 * u + 1] + column + b * 64, 0, 2);
      }
      const __m512i x = load_pairs(first + b * 64).v;
      const __m512i y = load_pairs(second + b * 64).v;
      const Vu low = {_mm512_unpacklo_epi16(x, y)};
      const Vu high = {_mm512_unpackhi_epi16(x, y)};
      FLASHTILE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const Vu weights = broadcast_u(p[r * p_ld + u]);
        sum[r][2 * b] = dot_pairs(weights, low, sum[r][2 * b]);
        sum[r][2 * b + 1] = dot_pairs(weights, high, sum[r][2 * b + 1]);
      }
    }
  }
  FLASHTILE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    FLASHTILE_UNROLL
    for (int c = 0; c < 2 * kBlocks; ++c) store(out + r * out_ld + c * kLanes, sum[r][c]);
  }
}

/// Columns of a row of O in their own order.
inline void restore_columns(float* row, int64_t dim) {
  float mixed[static_cast<size_t>(kPairColumns)];
  for (int64_t d = 0; d < dim; d += kPairColumns) {
    __builtin_memcpy(mixed, row + d, sizeof(mixed));
    for (int64_t part = 0; part < 8; ++part) {
      // Four columns of the low half, four of the high half, and so on.
      __builtin_memcpy(row + d + 4 * part, mixed + (part % 2) * 16 + part / 2 * 4, 16);
    }
  }
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
