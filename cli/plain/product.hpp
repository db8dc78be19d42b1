// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace flashtile::cli {

/// c (+)= a b in float: a is num_rows x depth with any strides, b and c are row-major.
struct Product {
  int64_t num_rows, num_cols, depth;
  const float* a;
  int64_t a_row_stride, a_col_stride;
  const float* b;
  float* c;
  bool accumulate;
  float* panel;  ///< room for depth * kPanelCols floats
};

inline constexpr int64_t kPanelCols = 64;

// The same text, compiled for three instruction sets.
namespace scalar {
void multiply(const Product& product);
void round_f16(float* values, int64_t count);
}  // namespace scalar
namespace avx2 {
void multiply(const Product& product);
void round_f16(float* values, int64_t count);
}  // namespace avx2
namespace avx512 {
void multiply(const Product& product);
void round_f16(float* values, int64_t count);
}  // namespace avx512

}  // namespace flashtile::cli
