// SPDX-License-Identifier: Apache-2.0
#pragma once

// The operands of attention's products in the two forms that the machine multiplies: float32, and
// pairs of bfloat16 where there is a dot product for them. Kernels are written once over either.

#include "cpu/kernels/gemm.hpp"
#include "cpu/kernels/pack.hpp"
#include "cpu/kernels/rows.hpp"
#if defined(__AVX512BF16__)
#include "cpu/kernels/pack_bf16.hpp"
#endif

namespace flashtile::cpu::FLASHTILE_ISA {

/// float32 operands; inputs of any dtype are widened when they are packed.
struct FloatOperands {
  using Element = float;
  /// Lives where products are used.
  struct Products {};
  /// Rows of a right operand that a product over `rows` of them reads.
  static FLASHTILE_INLINE int64_t rows_read(int64_t rows) { return rows; }

  /// Bytes of `rows` packed rows (or of a transposed block) of leading dimension ld.
  static FLASHTILE_INLINE int64_t bytes(int64_t rows, int64_t ld) { return rows * ld * 4; }

  static FLASHTILE_INLINE bool pack_left(const RowSource& src, int64_t rows, int64_t dim,
                                         Element* dst, int64_t ld) {
    return pack_rows(src, rows, dim, dst, ld);
  }
  static FLASHTILE_INLINE bool pack_right(const RowSource& src, int64_t rows, int64_t dim,
                                          Element* dst, int64_t ld) {
    return pack_rows(src, rows, dim, dst, ld);
  }
  static FLASHTILE_INLINE bool pack_right_transposed(const RowSource& src, int64_t rows,
                                                     int64_t dim, Element* dst, int64_t ld) {
    return pack_rows_transposed(src, rows, dim, dst, ld);
  }
  /// C (+)= A B with A as pack_left leaves it.
  static FLASHTILE_INLINE void multiply(int64_t m, int64_t n, int64_t k, const Element* a,
                                        int64_t lda, const Element* b, int64_t ldb,
                                        const GemmC& out) {
    gemm(m, n, k, {a, lda, 1}, b, ldb, out);
  }
  /// C (+)= A' B with A (k, m) as pack_right leaves it.
  static FLASHTILE_INLINE void multiply_transposed(int64_t m, int64_t n, int64_t k,
                                                   const Element* a, int64_t lda, const Element* b,
                                                   int64_t ldb, const GemmC& out) {
    gemm(m, n, k, {a, 1, lda}, b, ldb, out);
  }
  /// Where column `col` of a transposed block, or row `row` of a block by rows, begins;
  /// multiples of 16.
  static FLASHTILE_INLINE const Element* from_column(const Element* block, int64_t col) {
    return block + col;
  }
  static FLASHTILE_INLINE const Element* from_row(const Element* block, int64_t row, int64_t ld) {
    return block + row * ld;
  }
  /// Zeroes row `row` of a block that pack_right made.
  static FLASHTILE_INLINE void clear_right_row(Element* block, int64_t ld, int64_t row,
                                               int64_t dim) {
    for (int64_t d = 0; d < dim; ++d) block[row * ld + d] = 0;
  }
};

#if defined(__AVX512BF16__)
/// bfloat16 pairs.
struct Bf16Operands {
  using Element = Bf16;
  using Products = PairProducts;
  static FLASHTILE_INLINE int64_t rows_read(int64_t rows) { return (rows + 1) / 2 * 2; }

  static FLASHTILE_INLINE int64_t bytes(int64_t rows, int64_t ld) {
    return (rows + 1) / 2 * 2 * ld * 2;
  }

  static FLASHTILE_INLINE bool pack_left(const RowSource& src, int64_t rows, int64_t dim,
                                         Element* dst, int64_t ld) {
    return pack_rows_bf16(src, rows, dim, dst, ld);
  }
  static FLASHTILE_INLINE bool pack_right(const RowSource& src, int64_t rows, int64_t dim,
                                          Element* dst, int64_t ld) {
    return pack_pairs(src, rows, dim, dst, ld);
  }
  static FLASHTILE_INLINE bool pack_right_transposed(const RowSource& src, int64_t rows,
                                                     int64_t dim, Element* dst, int64_t ld) {
    return pack_pairs_transposed(src, rows, dim, dst, ld);
  }
  static FLASHTILE_INLINE void multiply(int64_t m, int64_t n, int64_t k, const Element* a,
                                        int64_t lda, const Element* b, int64_t ldb,
                                        const GemmC& out) {
    gemm_bf16(m, n, k, {a, lda, 2}, b, ldb, out);
  }
  static FLASHTILE_INLINE void multiply_transposed(int64_t m, int64_t n, int64_t k,
                                                   const Element* a, int64_t lda, const Element* b,
                                                   int64_t ldb, const GemmC& out) {
    gemm_bf16(m, n, k, {a, 2, 2 * lda}, b, ldb, out);
  }
  static FLASHTILE_INLINE const Element* from_column(const Element* block, int64_t col) {
    return block + 2 * col;
  }
  static FLASHTILE_INLINE const Element* from_row(const Element* block, int64_t row, int64_t ld) {
    return block + row * ld;
  }
  static FLASHTILE_INLINE void clear_right_row(Element* block, int64_t ld, int64_t row,
                                               int64_t dim) {
    for (int64_t d = 0; d < dim; ++d) block[(row / 2 * ld + d) * 2 + row % 2].bits = 0;
  }
};
#endif

/// Splits a scratch area into aligned pieces; without an area it only counts.
struct Scratch {
  char* area;
  int64_t used = 0;

  template <class T>
  FLASHTILE_INLINE T* take(int64_t count) {
    T* piece = area == nullptr ? nullptr : reinterpret_cast<T*>(area + used);
    used += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return piece;
  }
  FLASHTILE_INLINE char* take_bytes(int64_t bytes) { return take<char>(bytes); }
};

/// `kernel` where its products may be used.
template <class Operands, auto kernel, class Work>
auto with_products(const Work& work) {
  [[maybe_unused]] const typename Operands::Products products;
  return kernel(work);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
