// SPDX-License-Identifier: Apache-2.0
//
// Descriptors for the tensor memory accelerator (sm_90 and newer).
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "cuda/runtime/driver_api.hpp"
#include "flashtile/dtype.hpp"

namespace flashtile::cuda {

/// A tensor and the box of it that one copy moves to shared memory. Dimensions begin with the one
/// whose elements lie side by side.
struct TensorMapSpec {
  static constexpr int kMaxDims = 5;

  DType dtype = DType::kNone;
  const void* data = nullptr;  ///< a multiple of 16
  int32_t ndim = 0;
  std::array<int64_t, kMaxDims> shape{};
  std::array<int64_t, kMaxDims> strides{};  ///< elements; the first is 1, others multiples of 16 B
  std::array<int32_t, kMaxDims> box{};      ///< elements, at most 256
  driver::TensorMapSwizzle swizzle = driver::kSwizzleNone;
  driver::TensorMapPromotion promotion = driver::kPromote128;
};

/// What the copy engine cannot do with it ("strides[1] is 24 bytes, expected a multiple of 16");
/// empty when it can. For plans: needs no driver.
std::string tensor_map_fault(const TensorMapSpec& spec);

/// The descriptor. Throws Error with the fault, or for a driver before 12.0.
driver::TensorMapBytes encode_tensor_map(const TensorMapSpec& spec);

}  // namespace flashtile::cuda
