// SPDX-License-Identifier: Apache-2.0
#include "support/tensor.hpp"

#include <algorithm>
#include <cstring>

#include "random_numbers.hpp"
#include "tensors.hpp"

namespace flashtile::test {
namespace {

/// The one element of a view at an index, as a view.
TensorView element_of(const TensorView& view, std::initializer_list<int64_t> index) {
  return {view.at(index), view.dtype, std::initializer_list<int64_t>{}};
}

/// Addresses of all elements in row-major order.
std::vector<const char*> addresses(const TensorView& view) {
  std::vector<const char*> result;
  const int64_t count = view.numel();
  std::array<int64_t, TensorView::kMaxDims> index{};
  for (int64_t n = 0; n < count; ++n) {
    int64_t offset = 0;
    for (size_t d = 0; d < static_cast<size_t>(view.ndim); ++d)
      offset += index[d] * view.strides[d];
    result.push_back(static_cast<const char*>(view.data) + offset * dtype_bytes(view.dtype));
    for (auto d = static_cast<size_t>(view.ndim); d-- > 0;) {
      if (++index[d] < view.shape[d]) break;
      index[d] = 0;
    }
  }
  return result;
}

}  // namespace

Tensor::Tensor(DType dtype, std::span<const int64_t> shape) {
  const TensorView sized(nullptr, dtype, shape);
  const auto bytes = static_cast<size_t>(sized.numel() * dtype_bytes(dtype));
  memory_ = std::shared_ptr<char[]>(new char[bytes + 1]);
  std::memset(memory_.get(), 0xFF, bytes + 1);
  view_ = TensorView(memory_.get(), dtype, shape);
}

Tensor Tensor::random(DType dtype, std::initializer_list<int64_t> shape, uint64_t seed,
                      double size) {
  const Tensor result(dtype, shape);
  cli::RandomNumbers numbers(seed, "tensor");
  std::vector<double> values(static_cast<size_t>(result.view().numel()));
  for (double& value : values) value = numbers.normal() * size;
  cli::from_numbers(values, result.view());
  return result;
}

Tensor Tensor::filled(DType dtype, std::initializer_list<int64_t> shape, double value) {
  const Tensor result(dtype, shape);
  result.fill(value);
  return result;
}

Tensor Tensor::of(DType dtype, std::initializer_list<int64_t> shape,
                  std::span<const double> values) {
  const Tensor result(dtype, shape);
  cli::from_numbers(values, result.view());
  return result;
}

Tensor Tensor::ints(std::initializer_list<int> values) {
  return of(DType::kI32, {static_cast<int64_t>(values.size())},
            std::vector<double>(values.begin(), values.end()));
}

Tensor Tensor::ints(std::span<const int64_t> values) {
  return of(DType::kI32, {static_cast<int64_t>(values.size())},
            std::vector<double>(values.begin(), values.end()));
}

double Tensor::get(std::initializer_list<int64_t> index) const { return test::get(view_, index); }

void Tensor::set(std::initializer_list<int64_t> index, double value) const {
  test::set(view_, index, value);
}

void Tensor::fill(double value) const {
  cli::from_numbers(std::vector<double>(static_cast<size_t>(view_.numel()), value), view_);
}

std::vector<double> Tensor::numbers() const { return cli::to_numbers(view_); }

Tensor Tensor::copy(DType dtype) const {
  const Tensor result(dtype, cli::shape_of(view_));
  cli::from_numbers(numbers(), result.view());
  return result;
}

Tensor copy_of(const TensorView& view) {
  const Tensor result(view.dtype, cli::shape_of(view));
  cli::from_numbers(cli::to_numbers(view), result.view());
  return result;
}

double get(const TensorView& view, std::initializer_list<int64_t> index) {
  return cli::to_numbers(element_of(view, index)).front();
}

void set(const TensorView& view, std::initializer_list<int64_t> index, double value) {
  cli::from_numbers({&value, 1}, element_of(view, index));
}

bool same_bits(const TensorView& a, const TensorView& b) {
  if (a.dtype != b.dtype || cli::shape_of(a) != cli::shape_of(b)) return false;
  const std::vector<const char*> in_a = addresses(a);
  const std::vector<const char*> in_b = addresses(b);
  const auto bytes = static_cast<size_t>(dtype_bytes(a.dtype));
  return std::equal(in_a.begin(), in_a.end(), in_b.begin(),
                    [&](const char* x, const char* y) { return std::memcmp(x, y, bytes) == 0; });
}

double max_difference(const TensorView& a, const TensorView& b) {
  const std::vector<double> in_a = cli::to_numbers(a);
  const std::vector<double> in_b = cli::to_numbers(b);
  if (in_a.size() != in_b.size()) return kInf;
  double largest = 0;
  for (size_t i = 0; i < in_a.size(); ++i) {
    const bool is_same = in_a[i] == in_b[i] || (std::isnan(in_a[i]) && std::isnan(in_b[i]));
    if (is_same) continue;
    const double difference = std::abs(in_a[i] - in_b[i]);
    largest = std::isnan(difference) ? kInf : std::max(largest, difference);
  }
  return largest;
}

}  // namespace flashtile::test
