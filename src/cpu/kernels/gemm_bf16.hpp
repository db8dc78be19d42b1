// SPDX-License-Identifier: Apache-2.0
#pragma once

// As gemm.hpp, for bfloat16 operands on instruction sets with kHasBf16Dot: twice the rate. Products
// are exact, sums are float32; subnormal operands and sums count as zero.
//
// Both operands are read in pairs of neighbours in k, so k is rounded up to even and the element
// that is too many must be 0 in both: the packing functions of pack_bf16.hpp see to it.
//
//   A  the pair 2 p, 2 p + 1 of row i stands at data[i * row_stride + p * pair_stride]; strides are
//      in elements. Rows as they are (pack_rows_bf16, exp_row): {a, lda, 2}. Transposed, from the
//      pair form of pack_pairs: {a, 2, 2 * lda}.
//   B  pairs of rows: b[(p * ldb + j) * 2 + (0 or 1)], ldb >= padded(n) (pack_pairs,
//      pack_pairs_transposed).

#include "cpu/kernels/gemm.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// A view of A; see the top of the file.
struct GemmPairsA {
  const Bf16* data;
  int64_t row_stride;
  int64_t pair_stride;
};

/// While it lives its thread may call gemm_bf16: tile registers are a state of the thread that its
/// caller knows nothing of.
struct PairProducts {
#if defined(__AMX_BF16__)
  PairProducts() { AmxTiles::open(); }
  ~PairProducts() { AmxTiles::close(); }
  PairProducts(const PairProducts&) = delete;
  PairProducts& operator=(const PairProducts&) = delete;
#endif
};

/// C (+)= alpha * A * B; see the top of the file.
void gemm_bf16(int64_t m, int64_t n, int64_t k, const GemmPairsA& a, const Bf16* b, int64_t ldb,
               const GemmC& out);

}  // namespace flashtile::cpu::FLASHTILE_ISA
