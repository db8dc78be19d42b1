// SPDX-License-Identifier: Apache-2.0
#pragma once

// Small matrix products for operands that sit in cache: C (+)= alpha * A * B, float32 sums.
//
//   A  m x k floats, any strides: a[i * row_stride + p * col_stride]. Elements are broadcast one by
//      one, so that A transposed costs nothing: swap the strides. Never read outside m x k.
//   B  k x n floats, row-major with leading dimension ldb, packed (pack.hpp): n is rounded up to
//      whole vectors, and those columns are read, so ldb >= padded(n). Zero or finite padding; what
//      it holds only reaches the padding of C.
//   C  m x n floats, leading dimension ldc >= padded(n). The columns n .. padded(n) - 1 are
//      written as well; rows from m on are not.
//
// Nothing needs alignment; B and C are fastest on 64-byte boundaries.
//
// An element of C is one chain of fused multiply-adds over p = 0 .. k - 1, from zero, whatever the
// tile it falls in: splitting m or n gives the same bits. Then C = alpha * sum, or with
// `accumulate` C = alpha * sum + C * row_scale[i] (1 where row_scale is null); without it C is
// never read. k = 0 is a sum of 0. With an `addend` C = alpha * sum + addend instead, whose rows
// may overlap: that is how a number for each diagonal is added.
//
// S = scale QK', then O = diag(factor) O + PV, and dV += P'dO:
//   gemm(m, n, d, {q, ldq, 1}, kt, ldk, {.c = s, .ldc = lds, .alpha = softmax_scale});
//   gemm(m, dv, n, {p, lds, 1}, v, ldv,
//        {.c = o, .ldc = ldo, .accumulate = true, .row_scale = factor});
//   gemm(n, dv, m, {p, 1, lds}, dout, ldo, {.c = dv, .ldc = ldv, .accumulate = true});
//
// Where kHasBf16Dot is true there is gemm_bf16 as well, in gemm_bf16.hpp.

#include "cpu/simd/simd.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// n rounded up to whole vectors.
FLASHTILE_INLINE int64_t padded(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

/// A view of A; see the top of the file.
struct GemmA {
  const float* data;
  int64_t row_stride;
  int64_t col_stride;
};

/// Rows to be fetched into the second cache while products run, some lines for each tile: as many
/// as the processor waits for at once. Rows that lie far apart it does not see coming by itself.
/// With a `period` a tile fetches as many lines again after so many of its steps: where a tile
/// would have to fetch more than that.
struct RowPrefetch {
  static constexpr int kMaxSets = 12;
  static constexpr int64_t kLine = 64;
  struct Set {
    const char* row;
    int64_t row_stride;
    int64_t num_rows;
    int64_t row_bytes;
  };
  Set sets[kMaxSets];
  int num_sets = 0;
  int64_t lines_a_tile = 0;
  int64_t period = INT64_MAX;
  int current = 0;
  int64_t at = 0;  ///< in the current row

  void add(const Set& set) {
    if (num_sets < kMaxSets && set.num_rows > 0 && set.row_bytes > 0) sets[num_sets++] = set;
  }
  int64_t num_lines() const {
    int64_t lines = 0;
    for (int n = 0; n < num_sets; ++n) {
      lines += sets[n].num_rows * ((sets[n].row_bytes + kLine - 1) / kLine);
    }
    return lines;
  }
  FLASHTILE_INLINE void step() {
    for (int64_t left = lines_a_tile; left > 0 && current < num_sets;) {
      Set& set = sets[current];
      const char* line = set.row + at;
      const int64_t in_row = (set.row_bytes - at + kLine - 1) / kLine;
      const int64_t count = left < in_row ? left : in_row;
      for (int64_t n = 0; n < count; ++n) __builtin_prefetch(line + n * kLine, 0, 2);
      left -= count;
      at += count * kLine;
      if (at < set.row_bytes) continue;
      at = 0;
      set.row += set.row_stride;
      if (--set.num_rows == 0) ++current;
    }
  }
};

/// Spreads what is to be fetched over `num_steps` steps.
inline void spread_prefetch(int64_t num_steps, RowPrefetch* prefetch) {
  prefetch->lines_a_tile = num_steps == 0 ? 0 : (prefetch->num_lines() + num_steps - 1) / num_steps;
}

/// Tiles of a product of m rows and n columns.
inline int64_t tiles_of(int64_t m, int64_t n) {
  constexpr int64_t kRows = kTileRows[kTileVecs - 1];
  constexpr int64_t kColumns = kTileVecs * kLanes;
  return (m + kRows - 1) / kRows * ((n + kColumns - 1) / kColumns);
}

/// Where a product goes and how.
struct GemmC {
  float* c;
  int64_t ldc;
  float alpha = 1.0f;
  bool accumulate = false;
  const float* row_scale = nullptr;  ///< m factors for what is added: the old C, or `addend`
  RowPrefetch* prefetch = nullptr;
  const float* addend = nullptr;  ///< m x padded(n) floats; only without `accumulate`
  int64_t addend_row_stride = 0;  ///< of any sign
};

/// C (+)= alpha * A * B; see the top of the file.
void gemm(int64_t m, int64_t n, int64_t k, const GemmA& a, const float* b, int64_t ldb,
          const GemmC& out);

}  // namespace flashtile::cpu::FLASHTILE_ISA
