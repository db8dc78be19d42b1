// SPDX-License-Identifier: Apache-2.0
//
// How device functions are declared, and integers of a known width. Everything that only a GPU has
// stands in this folder: a host that defines the same names can run the kernels above it.
#pragma once

#define FLASHTILE_DEVICE __device__ __forceinline__
#define FLASHTILE_KERNEL extern "C" __global__ void
#define FLASHTILE_LAUNCH_BOUNDS(num_threads, min_ctas) __launch_bounds__(num_threads, min_ctas)
#define FLASHTILE_PARAMETER const __grid_constant__
#define FLASHTILE_UNROLL _Pragma("unroll")
#define FLASHTILE_NO_UNROLL _Pragma("unroll 1")
/// Functions of src/variant/ are device functions here.
#define FLASHTILE_VARIANT_INLINE FLASHTILE_DEVICE

namespace flashtile::device {

using uint16 = unsigned short;
using uint32 = unsigned int;
using uint64 = unsigned long long;
using int64 = long long;

}  // namespace flashtile::device
