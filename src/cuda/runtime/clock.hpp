// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

namespace flashtile::cuda {

/// The clock of the multiprocessors at this moment, in MHz, as the driver's management library
/// (NVML) says it; nothing where there is none.
std::optional<double> sm_clock_mhz(int32_t device_idx);

}  // namespace flashtile::cuda
