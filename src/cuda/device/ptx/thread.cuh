// SPDX-License-Identifier: Apache-2.0
//
// Where a thread stands, and what threads do together.
#pragma once

#include "cuda/device/ptx/define.cuh"

namespace flashtile::device {

constexpr int kWarpSize = 32;
constexpr uint32 kAllLanes = 0xffffffffu;

FLASHTILE_DEVICE int thread_idx() { return static_cast<int>(threadIdx.x); }
FLASHTILE_DEVICE int lane_idx() { return thread_idx() % kWarpSize; }
/// The same value, of which the compiler knows nothing. What is computed from it is computed again
/// each time, instead of taking registers for the length of a loop.
FLASHTILE_DEVICE int fresh(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
/// The same number in every lane, and the compiler knows it. All lanes ask together: not where they
/// have taken different ways.
FLASHTILE_DEVICE int warp_idx() { return __shfl_sync(kAllLanes, thread_idx() / kWarpSize, 0); }
FLASHTILE_DEVICE int64 cta_idx() { return blockIdx.x; }
FLASHTILE_DEVICE int64 num_ctas() { return gridDim.x; }

FLASHTILE_DEVICE void sync_cta() { __syncthreads(); }
/// A barrier of those threads alone, whole warps, that give the same id; 0 is sync_cta's.
FLASHTILE_DEVICE void sync_group(int id, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}
FLASHTILE_DEVICE void sync_warp() { __syncwarp(); }
/// A barrier; true where any thread of the CTA says so.
FLASHTILE_DEVICE bool sync_cta_any(bool value) { return __syncthreads_or(value) != 0; }

/// A barrier of all threads of a cluster that have not ended: what they have written to shared
/// memory before is there for the others behind it. For sm_90 and newer.
FLASHTILE_DEVICE void sync_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/// Lets the next kernel of the stream begin, if it was launched to overlap, as soon as all CTAs of
/// this one have said so or ended.
FLASHTILE_DEVICE void start_next_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/// Waits until the kernel before has ended and what it wrote is there.
FLASHTILE_DEVICE void wait_for_previous_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <class T>
FLASHTILE_DEVICE T shuffle_xor(T value, int lane_mask) {
  return __shfl_xor_sync(kAllLanes, value, lane_mask);
}
template <class T>
FLASHTILE_DEVICE T shuffle(T value, int lane) {
  return __shfl_sync(kAllLanes, value, lane);
}
/// The least and the largest of all lanes.
FLASHTILE_DEVICE int least_of_lanes(int value) { return __reduce_min_sync(kAllLanes, value); }
FLASHTILE_DEVICE int largest_of_lanes(int value) { return __reduce_max_sync(kAllLanes, value); }
FLASHTILE_DEVICE bool any_lane(bool value) { return __any_sync(kAllLanes, value) != 0; }
FLASHTILE_DEVICE bool all_lanes(bool value) { return __all_sync(kAllLanes, value) != 0; }

}  // namespace flashtile::device
