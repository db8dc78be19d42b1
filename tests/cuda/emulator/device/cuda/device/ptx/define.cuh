// SPDX-License-Identifier: Apache-2.0
//
// src/cuda/device/ptx/define.cuh for the emulated GPU.
#pragma once

#include "machine.hpp"

#define FLASHTILE_DEVICE inline
#define FLASHTILE_KERNEL extern "C" void
#define FLASHTILE_LAUNCH_BOUNDS(num_threads, min_ctas)
#define FLASHTILE_PARAMETER const
#define FLASHTILE_UNROLL
#define FLASHTILE_NO_UNROLL
#define FLASHTILE_VARIANT_INLINE inline

namespace flashtile::device {

using uint16 = unsigned short;
using uint32 = unsigned int;
using uint64 = unsigned long long;
using int64 = long long;

}  // namespace flashtile::device
