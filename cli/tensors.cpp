// SPDX-License-Identifier: Apache-2.0
#include "tensors.hpp"

#include <limits>

#include "core/element.hpp"
#include "files/storage.hpp"
#include "flashtile/error.hpp"

namespace flashtile::cli {
namespace {

void store_number(char* address, DType dtype, double value) {
  switch (dtype) {
    case DType::kI32:
      *reinterpret_cast<int32_t*>(address) = static_cast<int32_t>(value);
      break;
    case DType::kI64:
      *reinterpret_cast<int64_t*>(address) = static_cast<int64_t>(value);
      break;
    case DType::kU8:
    case DType::kBool:
      *reinterpret_cast<uint8_t*>(address) = static_cast<uint8_t>(value);
      break;
    default:
      store_float(address, dtype, value);
  }
}

double load_number(const char* address, DType dtype) {
  switch (dtype) {
    case DType::kI32:
      return *reinterpret_cast<const int32_t*>(address);
    case DType::kI64:
      return static_cast<double>(*reinterpret_cast<const int64_t*>(address));
    case DType::kU8:
    case DType::kBool:
      return *reinterpret_cast<const uint8_t*>(address);
    default:
      return load_float(address, dtype);
  }
}

/// Calls visit(address) for each element in row-major order.
template <class Visit>
void for_each_element(const TensorView& tensor, const Visit& visit) {
  const int64_t num_elements = tensor.numel();
  const int64_t element_bytes = dtype_bytes(tensor.dtype);
  std::array<int64_t, TensorView::kMaxDims> index{};
  char* address = static_cast<char*>(tensor.data);
  for (int64_t n = 0; n < num_elements; ++n) {
    visit(address);
    for (int d = tensor.ndim - 1; d >= 0; --d) {
      const auto i = static_cast<size_t>(d);
      address += tensor.strides[i] * element_bytes;
      if (++index[i] < tensor.shape[i]) break;
      address -= tensor.strides[i] * element_bytes * tensor.shape[i];
      index[i] = 0;
    }
  }
}

}  // namespace

TensorView TensorPool::make(DType dtype, std::span<const int64_t> shape) {
  int64_t bytes = 0;
  if (!contiguous_bytes(dtype, shape, &bytes)) {
    throw Error(ErrorCode::kOutOfMemory, "a tensor's size overflows");
  }
  const std::shared_ptr<std::byte[]> memory = allocate_bytes(static_cast<size_t>(bytes));
  storage_.emplace_back(memory, memory.get());
  return TensorView(memory.get(), dtype, shape);
}

TensorView TensorPool::convert(const TensorView& source, DType dtype) {
  const TensorView result = make(dtype, shape_of(source));
  if (dtype == source.dtype) {
    copy_contiguous(source, static_cast<std::byte*>(result.data));
    return result;
  }
  char* target = static_cast<char*>(result.data);
  for_each_element(source, [&](const char* address) {
    store_number(target, dtype, load_number(address, source.dtype));
    target += dtype_bytes(dtype);
  });
  return result;
}

std::vector<int64_t> shape_of(const TensorView& tensor) {
  return {tensor.shape.begin(), tensor.shape.begin() + tensor.ndim};
}

std::vector<double> to_numbers(const TensorView& tensor) {
  std::vector<double> numbers;
  numbers.reserve(static_cast<size_t>(tensor.numel()));
  for_each_element(
      tensor, [&](const char* address) { numbers.push_back(load_number(address, tensor.dtype)); });
  return numbers;
}

void from_numbers(std::span<const double> numbers, const TensorView& tensor) {
  size_t at = 0;
  for_each_element(tensor,
                   [&](char* address) { store_number(address, tensor.dtype, numbers[at++]); });
}

void poison(const TensorView& tensor) {
  const double value =
      is_floating(tensor.dtype) ? std::numeric_limits<double>::quiet_NaN() : double{0xA5};
  for_each_element(tensor, [&](char* address) { store_number(address, tensor.dtype, value); });
}

double number_at(const TensorView& tensor, int64_t offset) {
  return load_number(static_cast<const char*>(tensor.data) + offset * dtype_bytes(tensor.dtype),
                     tensor.dtype);
}

int64_t call_bytes(const OpCall& call) {
  int64_t bytes = 0;
  for (const std::string& name : call.tensor_names()) {
    const TensorView tensor = call.tensor(name);
    bytes += tensor.numel() * dtype_bytes(tensor.dtype);
  }
  return bytes;
}

}  // namespace flashtile::cli
