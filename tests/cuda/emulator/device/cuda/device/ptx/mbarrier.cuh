// SPDX-License-Identifier: Apache-2.0
//
// src/cuda/device/ptx/mbarrier.cuh for the emulated GPU.
#pragma once

#include "cuda/device/ptx/define.cuh"

namespace flashtile::device {

constexpr int kBarrierBytes = 8;

inline void init_barrier(uint32 barrier, int num_arrivals) {
  emulator::init_barrier(barrier, num_arrivals);
}
inline void fence_barrier_init() {}
inline void arrive(uint32 barrier) { emulator::arrive(barrier, 0); }
inline void arrive_if(uint32 barrier, bool does_arrive) {
  if (does_arrive) emulator::arrive(barrier, 0);
}
inline void arrive_expecting(uint32 barrier, int bytes) { emulator::arrive(barrier, bytes); }
inline void arrive_behind_copies(uint32 barrier) {
  emulator::copy_async_commit();
  emulator::copy_async_wait(0);
  emulator::arrive(barrier, 0);
}
inline void wait(uint32 barrier, uint32 parity) { emulator::wait_barrier(barrier, parity); }

}  // namespace flashtile::device
