// SPDX-License-Identifier: Apache-2.0
#pragma once

// As pack.hpp, into the bfloat16 forms that gemm_bf16.hpp reads. Sources of another dtype are
// rounded to nearest even. Tails are zero-filled: an odd last row or column, and everything up to
// ld. All return true when some packed value is not finite.
//
//   pack_rows_bf16         dst[row * ld + d], ld >= dim and even      A of S = QK', of dP = dO V'
//   pack_pairs             dst[((row / 2) * ld + d) * 2 + row % 2]    B of O = PV, of dQ = dS K;
//                          ld >= dim                                  A of dV = P'dO, dK = dS'Q
//   pack_pairs_transposed  dst[((d / 2) * ld + row) * 2 + d % 2]      B of S = QK', of dP = dO V'
//                          ld >= rows

#include "cpu/kernels/gemm_bf16.hpp"
#include "cpu/kernels/pack.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Rows as they are; see the top of the file.
bool pack_rows_bf16(const RowSource& src, int64_t rows, int64_t dim, Bf16* dst, int64_t ld);

/// Pairs of rows; (rows + 1) / 2 * ld * 2 elements. See the top of the file.
bool pack_pairs(const RowSource& src, int64_t rows, int64_t dim, Bf16* dst, int64_t ld);

/// Transposed, pairs of columns; (dim + 1) / 2 * ld * 2 elements. See the top of the file.
bool pack_pairs_transposed(const RowSource& src, int64_t rows, int64_t dim, Bf16* dst, int64_t ld);

}  // namespace flashtile::cpu::FLASHTILE_ISA
