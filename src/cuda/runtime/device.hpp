// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/gpu_model.hpp"
#include "flashtile/dtype.hpp"

namespace flashtile::cuda {

/// What `info` and benches show of a device of this machine, besides its model.
struct DeviceInfo {
  GpuModel model;
  int64_t memory_bytes = 0;
  int64_t clock_khz = 0;         ///< highest SM clock
  int64_t memory_clock_khz = 0;  ///< highest
  int64_t memory_bus_bits = 0;
  int64_t registers_per_sm = 0;

  /// What the memory gives at its highest clock; 0 where the driver does not say.
  double peak_bytes_per_second() const;
  /// Multiply-adds of dense products, each counted as two, at the highest clock: of 16 bits on
  /// tensor cores, of other types on float32 units. 0 for devices that are not known.
  double peak_operations_per_second(DType dtype) const;
};

/// Looked up once; never throws (`model.fault`). The reference stays valid.
const DeviceInfo& device_info(int32_t device_idx);

/// The compiler's target for a compute capability, given as 10 * major + minor: "sm_90a" for 90.
std::string arch_of(int32_t compute_capability);

}  // namespace flashtile::cuda
