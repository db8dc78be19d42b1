// SPDX-License-Identifier: Apache-2.0
//
// src/cuda/device/ptx/warpgroup.cuh for the emulated GPU.
#pragma once

#include "cuda/device/ptx/define.cuh"

namespace flashtile::device {

constexpr int kWarpgroupSize = 128;

inline void fence_products() {}
inline void commit_products() { emulator::commit_products(); }
template <int pending>
void wait_for_products() {
  emulator::wait_for_products(pending);
}
template <class Registers>
void pin(Registers&) {}
inline void fence_shared_for_async() {}
template <int kCount>
void release_registers() {}
template <int kCount>
void claim_registers() {}
inline void arrive_at_group(int id, int num_threads) { emulator::arrive_at_group(id, num_threads); }

}  // namespace flashtile::device
