// SPDX-License-Identifier: Apache-2.0
//
// Small tensors that own their memory, for tests that write a call out by hand.
#pragma once

#include <cmath>
#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "flashtile/tensor.hpp"

namespace flashtile::test {

/// A contiguous tensor. Copies share the memory. Fresh ones hold NaN, or the byte 0xFF.
class Tensor {
 public:
  Tensor() = default;
  /// Any view, without its memory.
  Tensor(const TensorView& view) : view_(view) {}  // NOLINT: views stand for tensors in Inputs
  Tensor(DType dtype, std::span<const int64_t> shape);
  Tensor(DType dtype, std::initializer_list<int64_t> shape)
      : Tensor(dtype, std::span(shape.begin(), shape.size())) {}

  /// Normal numbers times `size`.
  static Tensor random(DType dtype, std::initializer_list<int64_t> shape, uint64_t seed,
                       double size = 1);
  static Tensor filled(DType dtype, std::initializer_list<int64_t> shape, double value);
  static Tensor of(DType dtype, std::initializer_list<int64_t> shape,
                   std::span<const double> values);
  /// An i32 vector.
  static Tensor ints(std::initializer_list<int> values);
  static Tensor ints(std::span<const int64_t> values);

  const TensorView& view() const { return view_; }
  operator const TensorView&() const& { return view_; }  // NOLINT: a tensor is used as its view
  operator const TensorView&() && = delete;              // its memory would be gone
  explicit operator bool() const { return bool(view_); }

  double get(std::initializer_list<int64_t> index) const;
  void set(std::initializer_list<int64_t> index, double value) const;
  void fill(double value) const;
  std::vector<double> numbers() const;
  /// New memory, the same elements, perhaps of another dtype.
  Tensor copy(DType dtype) const;
  Tensor copy() const { return copy(view_.dtype); }

 private:
  std::shared_ptr<char[]> memory_;
  TensorView view_;
};

/// A new contiguous tensor with the elements of any view.
Tensor copy_of(const TensorView& view);

/// An element of any view as a number, and back.
double get(const TensorView& view, std::initializer_list<int64_t> index);
void set(const TensorView& view, std::initializer_list<int64_t> index, double value);

/// The elements of two views of the same shape and dtype have the same bytes.
bool same_bits(const TensorView& a, const TensorView& b);

/// Largest |a - b| over all elements; infinite where one is NaN or infinite and the other not the
/// same.
double max_difference(const TensorView& a, const TensorView& b);

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

}  // namespace flashtile::test
