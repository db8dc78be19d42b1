// SPDX-License-Identifier: Apache-2.0
//
// What single threads tell each other through memory, with a barrier between the two.
#pragma once

#include "cuda/device/ptx/define.cuh"
#include "cuda/device/ptx/memory.cuh"

namespace flashtile::device {

/// A word of shared memory that another thread has written.
FLASHTILE_DEVICE uint32 load_shared_word(uint32 address) {
  uint32 value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

/// Two neighbours, aligned to both.
FLASHTILE_DEVICE FloatPair load_shared_floats(uint32 address) {
  FloatPair value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "r"(address)
               : "memory");
  return value;
}

/// Where what a CTA has at a shared address lies in CTA `rank` of its cluster. For sm_90 and newer.
FLASHTILE_DEVICE uint32 address_in_cluster(uint32 address, int rank) {
  uint32 there = address;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
#endif
  return there;
}
/// Behind sync_cluster(): what lies at such an address, and four neighbours.
FLASHTILE_DEVICE float load_from_cluster(uint32 address) {
  float value = 0.0f;
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
#endif
  return value;
}
FLASHTILE_DEVICE void load_from_cluster(float (&value)[4], uint32 address) {
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
               : "r"(address)
               : "memory");
#endif
}

/// A global element that another thread of the CTA has written.
FLASHTILE_DEVICE int load_fresh(const int* address) {
  int value;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

/// What a thread has written before is there for those of other CTAs whose own fence comes behind
/// what tells them of it.
FLASHTILE_DEVICE void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

/// Adds 1; what was there before.
FLASHTILE_DEVICE uint32 atomic_increment(uint32* address) { return atomicAdd(address, 1u); }

/// A word that tells of what another CTA has written before: seen with it, or told with it.
FLASHTILE_DEVICE uint64 load_acquire(const uint64* address) {
  uint64 value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}
FLASHTILE_DEVICE void store_release(uint64* address, uint64 value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
/// Puts `value` in the place of `expected`; false where something else was there.
FLASHTILE_DEVICE bool exchange_if(uint64* address, uint64 expected, uint64 value) {
  return atomicCAS(address, expected, value) == expected;
}

}  // namespace flashtile::device
