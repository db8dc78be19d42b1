// SPDX-License-Identifier: Apache-2.0
//
// src/cuda/device/ptx/tensor_copy.cuh for the emulated GPU.
#pragma once

#include "cuda/device/params/tensor_map.hpp"
#include "cuda/device/ptx/define.cuh"

namespace flashtile::device {

constexpr uint64 kEvictFirst = 1;
constexpr uint64 kEvictNormal = 0;
constexpr uint64 kEvictLast = 2;

inline void prefetch(const TensorMapParam&) {}
inline void load_box(uint32 target, const TensorMapParam& map, uint32 barrier, int column, int row,
                     int head, int batch, uint64) {
  emulator::load_box(target, &map, barrier, {column, row, head, batch});
}
inline void store_box(const TensorMapParam& map, uint32 source, int column, int row, int head,
                      int batch) {
  emulator::store_box(&map, source, {column, row, head, batch});
}
inline void commit_stores() { emulator::commit_stores(); }
inline void wait_until_stores_have_read() { emulator::wait_for_stores(); }
inline void wait_for_stores() { emulator::wait_for_stores(); }

}  // namespace flashtile::device
