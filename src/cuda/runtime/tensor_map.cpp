// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/tensor_map.hpp"

#include <optional>
#include <string>

#include "cuda/runtime/driver.hpp"
#include "flashtile/error.hpp"

namespace flashtile::cuda {
namespace {

constexpr int64_t kUnitBytes = 16;
constexpr int64_t kMaxBox = 256;
constexpr int64_t kMaxShape = int64_t{1} << 32;
constexpr int64_t kMaxStrideBytes = int64_t{1} << 40;

std::optional<driver::TensorMapType> map_type(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return driver::kMapFloat16;
    case DType::kBF16:
      return driver::kMapBfloat16;
    case DType::kF32:
      return driver::kMapFloat32;
    case DType::kI32:
      return driver::kMapInt32;
    default:
      return std::nullopt;
  }
}

std::string found(const std::string& what, int64_t value, const std::string& expected) {
  return what + " is " + std::to_string(value) + ", expected " + expected;
}

std::string at(const char* name, int dim) {
  return std::string(name) + "[" + std::to_string(dim) + "]";
}

/// Bytes of a row of the box that the swizzle can spread.
int64_t swizzle_bytes(driver::TensorMapSwizzle swizzle) {
  return swizzle == driver::kSwizzleNone ? kMaxStrideBytes : int64_t{16} << swizzle;
}

}  // namespace

std::string tensor_map_fault(const TensorMapSpec& spec) {
  if (!map_type(spec.dtype)) return "the copy engine has no such dtype";
  if (spec.ndim < 1 || spec.ndim > TensorMapSpec::kMaxDims) {
    return found("ndim", spec.ndim, "1 to 5");
  }
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(spec.data) % kUnitBytes);
  if (address != 0) return found("data modulo 16", address, "0");
  if (spec.strides[0] != 1) return found(at("strides", 0), spec.strides[0], "1");
  const int64_t element_bytes = dtype_bytes(spec.dtype);
  for (int dim = 0; dim < spec.ndim; ++dim) {
    const auto i = static_cast<size_t>(dim);
    if (spec.shape[i] < 1 || spec.shape[i] > kMaxShape) {
      return found(at("shape", dim), spec.shape[i], "1 to 2^32");
    }
    if (spec.box[i] < 1 || spec.box[i] > kMaxBox) {
      return found(at("box", dim), spec.box[i], "1 to 256");
    }
    const int64_t stride_bytes = spec.strides[i] * element_bytes;
    const bool is_good = stride_bytes > 0 && stride_bytes < kMaxStrideBytes;
    if (dim > 0 && (!is_good || stride_bytes % kUnitBytes != 0)) {
      return found("bytes of " + at("strides", dim), stride_bytes,
                   "a multiple of 16 below 2^40, and not 0");
    }
  }
  const int64_t row_bytes = spec.box[0] * element_bytes;
  if (row_bytes % kUnitBytes != 0) return found("a box row's bytes", row_bytes, "a multiple of 16");
  if (row_bytes > swizzle_bytes(spec.swizzle)) {
    return found("a box row's bytes", row_bytes,
                 "at most the swizzle's " + std::to_string(swizzle_bytes(spec.swizzle)));
  }
  return {};
}

driver::TensorMapBytes encode_tensor_map(const TensorMapSpec& spec) {
  const std::string fault = tensor_map_fault(spec);
  if (!fault.empty()) throw Error(ErrorCode::kInternal, "tensor map: " + fault);
  const Driver& driver = Driver::required();
  if (driver.api().cuTensorMapEncodeTiled == nullptr) {
    throw Error(ErrorCode::kUnsupported, "tensor map: the driver is for CUDA " +
                                             cuda_version_text(driver.version()) +
                                             ", expected 12.0 or later");
  }
  std::array<uint64_t, TensorMapSpec::kMaxDims> shape{};
  std::array<uint64_t, TensorMapSpec::kMaxDims> stride_bytes{};  // without the first dimension's
  std::array<uint32_t, TensorMapSpec::kMaxDims> box{};
  std::array<uint32_t, TensorMapSpec::kMaxDims> steps{};
  for (size_t i = 0; i < static_cast<size_t>(spec.ndim); ++i) {
    shape[i] = static_cast<uint64_t>(spec.shape[i]);
    box[i] = static_cast<uint32_t>(spec.box[i]);
    steps[i] = 1;
    if (i > 0) {
      stride_bytes[i - 1] = static_cast<uint64_t>(spec.strides[i] * dtype_bytes(spec.dtype));
    }
  }
  driver::TensorMapBytes map{};
  driver.check(driver.api().cuTensorMapEncodeTiled(
                   &map, *map_type(spec.dtype), static_cast<uint32_t>(spec.ndim),
                   const_cast<void*>(spec.data), shape.data(), stride_bytes.data(), box.data(),
                   steps.data(), /*interleave=*/0, spec.swizzle, spec.promotion, /*fill=*/0),
               "tensor map");
  return map;
}

}  // namespace flashtile::cuda
