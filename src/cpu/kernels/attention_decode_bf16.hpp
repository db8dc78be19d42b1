// SPDX-License-Identifier: Apache-2.0
#pragma once

// The products of decoding where there is a dot product of bf16 pairs, for keys of bf16, and of
// e4m3, whose numbers are all numbers of bf16. Nothing is widened to float32: pairs of K are
// turned, 16 keys to the lanes of a register, and two rows of V are interleaved and meet a pair of
// weights, rounded to bf16. That leaves O in another order of columns, which `restore_columns` puts
// right at the end.

#include "cpu/simd/simd.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Columns that interleaving mixes.
inline constexpr int64_t kPairColumns = 32;

/// bf16 bits of the e4m3 numbers that are not negative, by their bits; 0x7F is NaN.
struct E4m3Table {
  alignas(64) uint16_t bits[128];
};
constexpr E4m3Table make_e4m3_table() {
  E4m3Table table{};
  for (int n = 0; n < 128; ++n) {
    int exponent = n >> 3;
    int mantissa = n & 7;
    if (exponent == 0 && mantissa != 0) {  // subnormal here, not in bf16
      exponent = 1;
      while (mantissa < 8) {
        mantissa *= 2;
        --exponent;
      }
      mantissa -= 8;
      table.bits[n] = static_cast<uint16_t>((exponent + 120) << 7 | mantissa << 4);
    } else if (exponent != 0) {
      table.bits[n] = static_cast<uint16_t>((exponent + 120) << 7 | mantissa << 4);
    }
  }
  table.bits[127] = 0x7FC0;
  return table;
}
inline constexpr E4m3Table kE4m3Table = make_e4m3_table();

/// kPairColumns elements of a row as pairs of bf16.
template <class T>
FLASHTILE_INLINE Vu load_pairs(const char* row);

template <>
FLASHTILE_INLINE Vu load_pairs<Bf16>(const char* row) {
  return load_u(reinterpret_cast<const uint32_t*>(row));
}

template <>
FLASHTILE_INLINE Vu load_pairs<E4m3>(const char* row) {
  const __m512i code =
      _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row)));
  const auto quarter = [](int n) { return _mm512_load_si512(&kE4m3Table.bits[32 * n]); };
  const __m512i small = _mm512_permutex2var_epi16(quarter(0), code, quarter(1));
  const __m512i large = _mm512_permutex2var_epi16(quarter(2), code, quarter(3));
  const __mmask32 is_large = _mm512_test_epi16_mask(code, _mm512_set1_epi16(0x40));
  const __m512i bits = _mm512_mask_blend_epi16(is_large, small, large);
  // bits | (code << 8 & 0x8000)
  return {_mm512_ternarylogic_epi32(_mm512_slli_epi16(code, 8), bits,
                                    _mm512_set1_epi16(static_cast<short>(0x8000)), 0xEC)};
}

/// Fetches what lies at element d of a row, where a line begins there.
template <class T>
FLASHTILE_INLINE void fetch_elements(const char* row, int64_t d) {
  const int64_t at = d * static_cast<int64_t>(sizeof(T));
  if (at % 64 == 0) __builtin_prefetch(row + at, 0, 2);
}

/// s[r * s_ld + u] = alpha q_r . k_u for kRows rows and 16 keys; dim is a multiple of 32. q has
/// rows of q_bytes bytes. A score is one chain of pairs, as in gemm_bf16.hpp.
template <int kRows, class T>
FLASHTILE_INLINE void score_pairs(const char* const* k_rows, int64_t offset, const char* q,
                                  int64_t q_bytes, int64_t dim, float alpha, float* s, int64_t s_ld,
                                  const char* const* ahead) {
  Vf sum[static_cast<size_t>(kRows)];
  FLASHTILE_UNROLL
  for (int r = 0; r < kRows; ++r) sum[r] = zero();
  for (int64_t d = 0; d < dim; d += kPairColumns) {
    Vu x[16];
    FLASHTILE_UNROLL
    for (int u = 0; u < 16; ++u) {
      if (ahead != nullptr) fetch_elements<T>(ahead[u], d);
      x[u] = load_pairs<T>(k_rows[u] + offset + d * static_cast<int64_t>(sizeof(T)));
    }
    transpose(x);
    FLASHTILE_UNROLL
    for (int c = 0; c < 16; ++c) {
      FLASHTILE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const auto* pair = reinterpret_cast<const uint32_t*>(q + r * q_bytes + 2 * d) + c;
        sum[r] = dot_pairs(x[c], broadcast_u(*pair), sum[r]);
      }
    }
  }
  FLASHTILE_UNROLL
  for (int r = 0; r < kRows; ++r) store(s + r * s_ld, sum[r] * broadcast(alpha));
}

/// O += P V for 16 keys, kRows rows and kBlocks * 32 columns from `column` on; p has rows of p_ld
/// pairs.
template <int kRows, int kBlocks, class T>
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
    const int64_t at = offset + column * static_cast<int64_t>(sizeof(T));
    const char* first = v_rows[2 * u] + at;
    const char* second = v_rows[2 * u + 1] + at;
    FLASHTILE_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      if (ahead != nullptr) {
        fetch_elements<T>(ahead[2 * u], column + b * kPairColumns);
        fetch_elements<T>(ahead[2 * u + 1], column + b * kPairColumns);
      }
      constexpr auto kBlockBytes = kPairColumns * static_cast<int64_t>(sizeof(T));
      const __m512i x = load_pairs<T>(first + b * kBlockBytes).v;
      const __m512i y = load_pairs<T>(second + b * kBlockBytes).v;
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
