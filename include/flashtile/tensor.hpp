// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "flashtile/dtype.hpp"
#include "flashtile/export.hpp"

namespace flashtile {

enum class DeviceType : int32_t { kCpu = 1, kCuda = 2 };  // DLPack's numbers

/// Where memory lies: the CPU, whose index is 0, or a GPU, counted from 0 as CUDA counts them.
struct Device {
  DeviceType type = DeviceType::kCpu;
  int32_t index = 0;
  bool operator==(const Device&) const = default;
};

/// A view of memory that somebody else owns: address, dtype, device, shape and strides.
///
/// Strides count elements and may be 0 (inputs only) or negative; `data` is the address of element
/// (0, ..., 0). Inputs and outputs share this type; the library writes through outputs only. A
/// default-constructed view is "no tensor". Fixed size: making one never allocates.
struct FLASHTILE_API TensorView {
  static constexpr int kMaxDims = 8;

  void* data = nullptr;
  DType dtype = DType::kNone;
  Device device;
  int32_t ndim = 0;
  std::array<int64_t, kMaxDims> shape{};
  std::array<int64_t, kMaxDims> strides{};

  TensorView() = default;
  /// A contiguous (row-major) view. Throws Error for more than kMaxDims dimensions,
  /// and where the number of elements does not fit in 64 bits.
  TensorView(const void* data, DType dtype, std::span<const int64_t> shape);
  TensorView(const void* data, DType dtype, std::initializer_list<int64_t> shape);
  /// Any strides, in elements, one for each dimension. Throws Error for more than kMaxDims
  /// dimensions and for another number of strides.
  TensorView(const void* data, DType dtype, std::span<const int64_t> shape,
             std::span<const int64_t> strides);

  explicit operator bool() const { return dtype != DType::kNone; }
  /// The same view of the same memory.
  bool operator==(const TensorView&) const = default;

  /// Number of elements; 1 for a tensor without dimensions. Assumes that the product fits.
  int64_t numel() const;
  /// Address of the element at `index` (one entry a dimension), as bytes.
  char* at(std::initializer_list<int64_t> index) const;
  /// The same memory with dimensions a and b exchanged. Throws Error for one that is not there.
  TensorView transposed(int a, int b) const;
  /// The part [begin, end) of dimension `dim`. Throws Error where it is not inside.
  TensorView sliced(int dim, int64_t begin, int64_t end) const;
};

/// "f32 (2, 129, 8, 64) strides (66048, 512, 64, 1)"; strides only where not contiguous.
FLASHTILE_API std::string to_string(const TensorView& tensor);

}  // namespace flashtile
