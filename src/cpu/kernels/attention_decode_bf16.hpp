// SPDX-License-Identifier: Apache-2.0
#pragma once

// The products of decoding where there is a dot product of bf16 pairs. Nothing is widened to
// float32: pairs of K are turned, 16 keys to the lanes of a register, and two rows of V are
// interleaved and meet a pair of weights, rounded to bf16. That leaves O in another order of
// columns, which `restore_columns` puts right at the end. Numbers of i8 and e4m3 are all numbers of
// bf16. Rows that are no whole registers are copied before, 16 keys of a head at a time.

#include "cpu/kernels/attention_decode_widened.hpp"

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

/// The first `left` elements of a row, or kPairColumns.
FLASHTILE_INLINE __m512i load_words(const Bf16* row) { return _mm512_loadu_si512(row); }
FLASHTILE_INLINE __m512i load_words(const Bf16* row, int64_t left) {
  return _mm512_maskz_loadu_epi16((1u << left) - 1, row);
}
template <class T>
FLASHTILE_INLINE __m256i load_words(const T* row) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
}
template <class T>
FLASHTILE_INLINE __m256i load_words(const T* row, int64_t left) {
  return _mm256_maskz_loadu_epi8((1u << left) - 1, row);
}

/// Elements as pairs of bf16.
FLASHTILE_INLINE __m512i to_pairs(__m512i words, Bf16) { return words; }
FLASHTILE_INLINE __m512i to_pairs(__m256i words, E4m3) {
  const __m512i code = _mm512_cvtepu8_epi16(words);
  const auto quarter = [](int n) { return _mm512_load_si512(&kE4m3Table.bits[32 * n]); };
  const __m512i small = _mm512_permutex2var_epi16(quarter(0), code, quarter(1));
  const __m512i large = _mm512_permutex2var_epi16(quarter(2), code, quarter(3));
  const __mmask32 is_large = _mm512_test_epi16_mask(code, _mm512_set1_epi16(0x40));
  const __m512i bits = _mm512_mask_blend_epi16(is_large, small, large);
  // bits | (code << 8 & 0x8000)
  return _mm512_ternarylogic_epi32(_mm512_slli_epi16(code, 8), bits,
                                   _mm512_set1_epi16(static_cast<short>(0x8000)), 0xEC);
}
FLASHTILE_INLINE __m512i to_pairs(__m256i words, I8) {
  const __m512i pairs = _mm512_cvtepi8_epi16(words);
  const __m512 low = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 16));
  const __m512 high = _mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 16));
  // Exact in bf16, so that the low halves are zero.
  return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(low), 16),
                         _mm512_castps_si512(high));
}

/// Rows of a group in bf16, side by side, with zeros up to whole registers: row u begins at
/// to + u * ld.
template <class T>
void copy_pairs(KeyGroupRows rows, int64_t dim, Bf16* to, int64_t ld) {
  for (int64_t u = 0; u < kKeyGroup; ++u, to += ld) {
    const T* row = rows.row<T>(u, 0);
    int64_t d = 0;
    for (; d + kPairColumns <= dim; d += kPairColumns) {
      _mm512_storeu_si512(to + d, to_pairs(load_words(row + d), T()));
    }
    if (d < dim) _mm512_storeu_si512(to + d, to_pairs(load_words(row + d, dim - d), T()));
  }
}

/// s[r * s_ld + u] = alpha q_r . k_u for kRows rows and the keys of a group; dim is a multiple of
/// kPairColumns. q has rows of q_ld elements. A score is one chain of pairs, as in gemm_bf16.hpp.
template <int kRows, class T>
FLASHTILE_NOINLINE void score_pairs(KeyGroupRows k, const Bf16* q, int64_t q_ld, int64_t dim,
                                    float alpha, float* s, int64_t s_ld, TileFetch fetch) {
  Vf sum[static_cast<size_t>(kRows)];
  FLASHTILE_UNROLL
  for (int r = 0; r < kRows; ++r) sum[r] = zero();
  for (int64_t d = 0; d < dim; d += kPairColumns) {
    FetchStep ahead = fetch.next();
    forget(k.rows);
    Vu x[16];
    FLASHTILE_UNROLL
    for (int u = 0; u < 16; ++u) x[u] = {to_pairs(load_words(k.row<T>(u, d)), T())};
    transpose(x);
    FLASHTILE_UNROLL
    for (int c = 0; c < 16; ++c) {
      FLASHTILE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        uint32_t pair;
        __builtin_memcpy(&pair, q + r * q_ld + d + 2 * c, sizeof(pair));
        sum[r] = dot_pairs(x[c], broadcast_u(pair), sum[r]);
      }
      ahead.fetch_after(sum[0], c);
    }
  }
  FLASHTILE_UNROLL
  for (int r = 0; r < kRows; ++r) store(s + r * s_ld, sum[r] * broadcast(alpha));
}

/// The same for one row of each of kHeads heads, whose keys lie k_step bytes apart: a chain waits
/// for each of its products, and those of several heads go side by side. Rows of q and s are those
/// of the heads.
template <int kHeads, class T>
FLASHTILE_NOINLINE void score_heads(KeyGroupRows k, int64_t k_step, const Bf16* q, int64_t q_ld,
                                    int64_t dim, float alpha, float* s, int64_t s_ld,
                                    TileFetch fetch) {
  Vf sum[static_cast<size_t>(kHeads)];
  FLASHTILE_UNROLL
  for (int h = 0; h < kHeads; ++h) sum[h] = zero();
  for (int64_t d = 0; d < dim; d += kPairColumns) {
    KeyGroupRows rows = k;
    FLASHTILE_UNROLL
    for (int h = 0; h < kHeads; ++h, rows.offset += k_step) {
      FetchStep ahead = fetch.next();
      forget(rows.rows);
      Vu x[16];
      FLASHTILE_UNROLL
      for (int u = 0; u < 16; ++u) x[u] = {to_pairs(load_words(rows.row<T>(u, d)), T())};
      transpose(x);
      FLASHTILE_UNROLL
      for (int c = 0; c < 16; ++c) {
        uint32_t pair;
        __builtin_memcpy(&pair, q + h * q_ld + d + 2 * c, sizeof(pair));
        sum[h] = dot_pairs(x[c], broadcast_u(pair), sum[h]);
        ahead.fetch_after(sum[h], c);
      }
    }
  }
  FLASHTILE_UNROLL
  for (int h = 0; h < kHeads; ++h) store(s + h * s_ld, sum[h] * broadcast(alpha));
}

/// Sums + P V for the keys of a group, kRows rows and kBlocks * kPairColumns columns from d on; p
/// has rows of p_ld elements.
template <int kRows, int kBlocks, class T>
FLASHTILE_NOINLINE void add_pairs(KeyGroupRows v, int64_t d, const Bf16* p, int64_t p_ld,
                                  const SumRows& sums, TileFetch fetch) {
  Sums<kRows, 2 * kBlocks> sum;
  FLASHTILE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    FLASHTILE_UNROLL
    for (int c = 0; c < 2 * kBlocks; ++c) {
      sum[r][c] = load(sums.from + r * sums.from_ld + d + c * kLanes);
    }
  }
  FetchStep ahead{};
  FLASHTILE_UNROLL
  for (int u = 0; u < 8; ++u) {
    if (u * 2 * kBlocks % kKeyGroup == 0) ahead = fetch.next();
    FLASHTILE_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      const int64_t column = d + b * kPairColumns;
      const __m512i x = to_pairs(load_words(v.row<T>(2 * u, column)), T());
      const __m512i y = to_pairs(load_words(v.row<T>(2 * u + 1, column)), T());
      const Vu low = {_mm512_unpacklo_epi16(x, y)};
      const Vu high = {_mm512_unpackhi_epi16(x, y)};
      FLASHTILE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        uint32_t pair;
        __builtin_memcpy(&pair, p + r * p_ld + 2 * u, sizeof(pair));
        const Vu weights = broadcast_u(pair);
        sum[r][2 * b] = dot_pairs(weights, low, sum[r][2 * b]);
        sum[r][2 * b + 1] = dot_pairs(weights, high, sum[r][2 * b + 1]);
      }
      ahead.fetch_after(sum[0][2 * b], (u * kBlocks + b) * 2);
      ahead.fetch_after(sum[0][2 * b + 1], (u * kBlocks + b) * 2 + 1);
    }
  }
  FLASHTILE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    FLASHTILE_UNROLL
    for (int c = 0; c < 2 * kBlocks; ++c) {
      store(sums.to + r * sums.to_ld + d + c * kLanes, sum[r][c]);
    }
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
