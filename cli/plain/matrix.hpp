// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "flashtile/dtype.hpp"

namespace flashtile::cli {

/// A row-major matrix of float or double.
template <class Real>
class Matrix {
 public:
  Matrix() = default;
  Matrix(int64_t num_rows, int64_t num_cols)
      : num_rows_(num_rows),
        num_cols_(num_cols),
        values_(static_cast<size_t>(num_rows * num_cols)) {}

  int64_t num_rows() const { return num_rows_; }
  int64_t num_cols() const { return num_cols_; }
  std::span<Real> row(int64_t i) {
    return {values_.data() + i * num_cols_, static_cast<size_t>(num_cols_)};
  }
  std::span<const Real> row(int64_t i) const {
    return {values_.data() + i * num_cols_, static_cast<size_t>(num_cols_)};
  }
  std::span<Real> all() { return values_; }
  const Real* data() const { return values_.data(); }
  Real* data() { return values_.data(); }

 private:
  int64_t num_rows_ = 0;
  int64_t num_cols_ = 0;
  std::vector<Real> values_;
};

/// The matrix on the left of a product, or its transpose.
template <class Real>
struct Left {
  const Matrix<Real>& matrix;
  bool is_transposed = false;

  int64_t num_rows() const { return is_transposed ? matrix.num_cols() : matrix.num_rows(); }
  int64_t num_cols() const { return is_transposed ? matrix.num_rows() : matrix.num_cols(); }
  int64_t row_stride() const { return is_transposed ? 1 : matrix.num_cols(); }
  int64_t col_stride() const { return is_transposed ? matrix.num_cols() : 1; }
};

/// c = a b, or c += a b. Sums are of the type of the operands, in the order of the inner index.
void multiply(const Left<float>& a, const Matrix<float>& b, bool accumulate, Matrix<float>& c);
void multiply(const Left<double>& a, const Matrix<double>& b, bool accumulate, Matrix<double>& c);

/// Rounds to the values that a dtype has; nothing to do for f32 and f64.
void round_to(DType dtype, std::span<float> values);
void round_to(DType dtype, std::span<double> values);

template <class Real>
Matrix<Real> transposed(const Matrix<Real>& a) {
  Matrix<Real> result(a.num_cols(), a.num_rows());
  for (int64_t i = 0; i < a.num_rows(); ++i) {
    for (int64_t j = 0; j < a.num_cols(); ++j) {
      result.data()[j * a.num_rows() + i] = a.data()[i * a.num_cols() + j];
    }
  }
  return result;
}

}  // namespace flashtile::cli
