// SPDX-License-Identifier: Apache-2.0
//
// What the four warps of a warpgroup do together (sm_90): products that run beside the
// instructions behind them, in groups that end in order, and registers that move between
// warpgroups.
#pragma once

#include "cuda/device/ptx/define.cuh"

namespace flashtile::device {

constexpr int kWarpgroupSize = 128;

/// Before the first product that reads or adds to registers that ordinary instructions have
/// written.
FLASHTILE_DEVICE void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FLASHTILE_DEVICE void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most `pending` of the newest groups run.
template <int pending>
FLASHTILE_DEVICE void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/// Keeps the compiler from moving uses of the registers across this place.
template <int kCount>
FLASHTILE_DEVICE void pin(float (&registers)[kCount]) {
  FLASHTILE_UNROLL
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int kCount>
FLASHTILE_DEVICE void pin(uint32 (&registers)[kCount]) {
  FLASHTILE_UNROLL
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

/// Makes what this thread has written to shared memory visible to products and the copy engine.
FLASHTILE_DEVICE void fence_shared_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// The registers of each thread from here on; by all threads of a warpgroup.
template <int kCount>
FLASHTILE_DEVICE void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
FLASHTILE_DEVICE void claim_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

/// Counts as having come to a barrier that others wait at (sync_group), without waiting.
FLASHTILE_DEVICE void arrive_at_group(int id, int num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

}  // namespace flashtile::device
