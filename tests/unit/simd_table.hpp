// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "cpu/cpu_info.hpp"
#include "cpu/simd/types.hpp"
#include "flashtile/dtype.hpp"

namespace flashtile::testing {

enum class UnaryOp {
  kNeg,
  kAbs,
  kSqrt,
  kRound,
  kFloor,  // exact
  kExp,
  kExp2,
  kExp2Fast,
  kLog,
  kLog2,
  kTanh,
  kSigmoid  // approximate
};
enum class BinaryOp { kAdd, kSub, kMul, kDiv, kMin, kMax };
enum class CompareOp { kLt, kLe, kGt, kGe, kEq, kNe };
enum class IntOp { kAdd, kSub, kXor, kAnd, kOr, kMulLo, kMulHi };

/// One instruction set's vector layer and tiles as plain functions. Tests call these, so that no
/// test code (GoogleTest, the standard library) is compiled with that set's flags. Vectors are
/// arrays of `lanes` elements.
struct SimdTable {
  cpu::Isa isa;
  int lanes;
  bool has_bf16_dot;

  void (*unary)(UnaryOp op, const float* x, float* y);
  void (*binary)(BinaryOp op, const float* x, const float* y, float* z);
  void (*fma)(const float* a, const float* b, const float* c, float* sum, float* difference);
  void (*scale_pow2)(const float* x, const float* n, float* y);
  uint32_t (*compare)(CompareOp op, const float* x, const float* y);
  uint32_t (*first_lanes)(int64_t count);
  void (*select)(int64_t count, const float* if_set, const float* if_clear, float* out);
  float (*reduce_add)(const float* x);
  float (*reduce_max)(const float* x);

  void (*integer)(IntOp op, const uint32_t* x, const uint32_t* y, uint32_t* z);
  void (*shift)(const uint32_t* x, int left, int right, uint32_t* y);
  uint32_t (*less_i32)(const uint32_t* x, const uint32_t* y);
  uint32_t (*equal_u)(const uint32_t* x, const uint32_t* y);
  void (*round_to_i32)(const float* x, uint32_t* y);
  void (*i32_to_float)(const uint32_t* x, float* y);
  void (*transpose)(const uint32_t* x, uint32_t* y);  ///< lanes x lanes
  void (*store_u_groups)(const uint32_t* x, uint32_t* y, int64_t stride);

  /// Element by element conversion; count < 0 means the full forms, else the partial ones.
  void (*load)(DType dtype, const void* x, int64_t count, float* y);
  void (*store)(DType dtype, const float* x, int64_t count, void* y);
  void (*store_flush)(const float* x, uint16_t* y);
  void (*load_u)(const uint32_t* x, int64_t count, uint32_t* y);
  void (*store_u)(const uint32_t* x, int64_t count, uint32_t* y);
  void (*load_u16)(const uint16_t* x, int64_t count, uint32_t* y);
  void (*store_u16)(const uint32_t* x, int64_t count, uint16_t* y);

  int64_t (*padded)(int64_t n);
  int64_t (*tile_ld)(int64_t n);
  struct Product {
    int64_t m, n, k;
    const void* a;  ///< float, or Bf16 for gemm_bf16
    int64_t row_stride, col_stride;
    const void* b;
    int64_t ldb;
    float* c;
    int64_t ldc;
    float alpha = 1.0f;
    bool accumulate = false;
    const float* row_scale = nullptr;
    const float* addend = nullptr;
    int64_t addend_row_stride = 0;
  };
  void (*gemm)(const Product& product);
  /// The same while `num_rows` rows of `row_bytes`, `row_stride` apart, are fetched: some in every
  /// `period` steps of each tile. Returns the rows that are left when it ends.
  int64_t (*gemm_fetching)(const Product& product, const char* row, int64_t row_stride,
                           int64_t num_rows, int64_t row_bytes, int64_t period);
  void (*gemm_bf16)(const Product& product);  ///< null without has_bf16_dot

  struct Rows {
    void* const* rows;
    DType dtype;
    int64_t stride;
    int64_t num_rows, dim;
  };
  bool (*pack_rows)(const Rows& src, float* dst, int64_t ld, float scale);
  bool (*pack_rows_transposed)(const Rows& src, float* dst, int64_t ld, float scale);
  void (*unpack_rows)(const float* src, int64_t ld, const Rows& target, float scale,
                      const float* row_scale);
  bool (*pack_rows_bf16)(const Rows& src, cpu::Bf16* dst, int64_t ld);  ///< these three as above
  bool (*pack_pairs)(const Rows& src, cpu::Bf16* dst, int64_t ld);
  bool (*pack_pairs_transposed)(const Rows& src, cpu::Bf16* dst, int64_t ld);

  float (*row_max_of)(const float* s, int64_t n, float start);
  float (*softmax_reference)(float row_max);
  float (*exp_row)(const float* s, int64_t n, float reference, float* p);
  float (*exp2_row)(const float* s, int64_t n, float reference, float* p);
  float (*exp2_row_bf16)(const float* s, int64_t n, float reference, cpu::Bf16* p);
  /// The sum; *top is the maximum.
  float (*exp2_row_lanes)(const float* s, int64_t n, float reference, float* p, float* top);
  void (*exp2_grad_row)(float* s, float* dp, int64_t n, float reference, float delta);
  void (*scale_row)(float* x, int64_t n, float factor);
  void (*fill_row)(float* x, int64_t n, float value);
  void (*mask_row_outside)(float* s, int64_t n, int64_t begin, int64_t end);
  void (*mask_row_bytes)(float* s, int64_t n, const uint8_t* keep);
  float (*row_dot)(const float* a, const float* b, int64_t n);
  void (*softmax_grad_row)(const float* p, const float* dp, int64_t n, float delta, float* ds);
};

/// The tables that this build has and this CPU can run; the portable one is always there.
std::vector<const SimdTable*> simd_tables();

/// Those of them with the bf16 dot product.
std::vector<const SimdTable*> bf16_dot_tables();

/// A test parameter prints as its instruction set.
inline void PrintTo(const SimdTable* table, std::ostream* out) { *out << isa_name(table->isa); }

}  // namespace flashtile::testing
