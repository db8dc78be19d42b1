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

#include "cpu/kernels/row_prefetch.hpp"
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
