// SPDX-License-Identifier: Apache-2.0
#include "flashtile/tensor.hpp"

#include <algorithm>
#include <utility>

#include "flashtile/error.hpp"

namespace flashtile {
namespace {

std::string to_text(std::span<const int64_t> values) {
  std::string text = "(";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(values[i]);
  }
  return text + ")";
}

[[noreturn]] void fail(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, "TensorView: " + text);
}

// Row-major strides. Negative sizes are left to the op that gets the tensor: it can name the
// argument. Here they count as 1.
std::array<int64_t, TensorView::kMaxDims> contiguous_strides(std::span<const int64_t> shape) {
  std::array<int64_t, TensorView::kMaxDims> strides{};
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    if (__builtin_mul_overflow(stride, std::max<int64_t>(shape[i], 1), &stride)) {
      fail("shape " + to_text(shape) + " has more elements than 64 bits count");
    }
  }
  return strides;
}

std::span<const int64_t> checked(std::span<const int64_t> shape) {
  if (shape.size() > static_cast<size_t>(TensorView::kMaxDims)) {
    fail("has " + std::to_string(shape.size()) + " dimensions, expected at most " +
         std::to_string(TensorView::kMaxDims));
  }
  return shape;
}

// Strides of dimensions of size 1 are never used, and an empty tensor uses none.
bool is_contiguous(const TensorView& tensor) {
  int64_t stride = 1;
  for (size_t i = static_cast<size_t>(tensor.ndim); i-- > 0;) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1 && tensor.strides[i] != stride) return false;
    if (__builtin_mul_overflow(stride, tensor.shape[i], &stride)) return false;
  }
  return true;
}

void check_dim(const char* what, const TensorView& tensor, int dim) {
  if (dim < 0 || dim >= tensor.ndim) {
    fail(std::string(what) + ": dimension is " + std::to_string(dim) + ", expected 0 to " +
         std::to_string(tensor.ndim - 1));
  }
}

char* advance(void* data, int64_t elements, DType dtype) {
  char* bytes = static_cast<char*>(data);
  return bytes == nullptr ? nullptr : bytes + elements * dtype_bytes(dtype);
}

}  // namespace

TensorView::TensorView(const void* address, DType type, std::span<const int64_t> sizes)
    : TensorView(
          address, type, sizes,
          std::span<const int64_t>(contiguous_strides(checked(sizes)).data(), sizes.size())) {}

TensorView::TensorView(const void* address, DType type, std::initializer_list<int64_t> sizes)
    : TensorView(address, type, std::span<const int64_t>(sizes.begin(), sizes.size())) {}

TensorView::TensorView(const void* address, DType type, std::span<const int64_t> sizes,
                       std::span<const int64_t> steps)
    : data(const_cast<void*>(address)), dtype(type), ndim(static_cast<int32_t>(sizes.size())) {
  checked(sizes);
  if (steps.size() != sizes.size()) {
    fail("has " + std::to_string(steps.size()) + " strides, expected " +
         std::to_string(sizes.size()));
  }
  std::copy(sizes.begin(), sizes.end(), shape.begin());
  std::copy(steps.begin(), steps.end(), strides.begin());
}

int64_t TensorView::numel() const {
  int64_t count = 1;
  for (size_t i = 0; i < static_cast<size_t>(ndim); ++i) count *= shape[i];
  return count;
}

char* TensorView::at(std::initializer_list<int64_t> index) const {
  int64_t offset = 0;
  size_t dim = 0;
  for (int64_t i : index) offset += i * strides[dim++];
  return advance(data, offset, dtype);
}

TensorView TensorView::transposed(int a, int b) const {
  check_dim("transposed", *this, a);
  check_dim("transposed", *this, b);
  TensorView view = *this;
  std::swap(view.shape[static_cast<size_t>(a)], view.shape[static_cast<size_t>(b)]);
  std::swap(view.strides[static_cast<size_t>(a)], view.strides[static_cast<size_t>(b)]);
  return view;
}

TensorView TensorView::sliced(int dim, int64_t begin, int64_t end) const {
  check_dim("sliced", *this, dim);
  const auto d = static_cast<size_t>(dim);
  if (begin < 0 || begin > end || end > shape[d]) {
    fail("sliced: range is [" + std::to_string(begin) + ", " + std::to_string(end) +
         "), expected one inside [0, " + std::to_string(shape[d]) + ")");
  }
  TensorView view = *this;
  view.data = advance(data, begin * strides[d], dtype);
  view.shape[d] = end - begin;
  return view;
}

std::string to_string(const TensorView& tensor) {
  if (!tensor) return "none";
  const auto ndim = static_cast<size_t>(tensor.ndim);
  std::string text(dtype_name(tensor.dtype));
  text += " " + to_text({tensor.shape.data(), ndim});
  if (!is_contiguous(tensor)) text += " strides " + to_text({tensor.strides.data(), ndim});
  return text;
}

}  // namespace flashtile
