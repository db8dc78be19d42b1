// SPDX-License-Identifier: Apache-2.0
//
// Copies of boxes of tensors between global and shared memory by the copy engine (sm_90). What lies
// outside of a tensor is read as zero and not written.
#pragma once

#include "cuda/device/params/tensor_map.hpp"
#include "cuda/device/ptx/define.cuh"

namespace flashtile::device {

/// How long the L2 cache keeps what a copy reads.
constexpr uint64 kEvictFirst = 0x12F0000000000000ull;
constexpr uint64 kEvictNormal = 0x16F0000000000000ull;
constexpr uint64 kEvictLast = 0x14F0000000000000ull;

FLASHTILE_DEVICE void prefetch(const TensorMapParam& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Copies the box at (column, row, head, batch) to `target`, and counts its bytes at `barrier`.
FLASHTILE_DEVICE void load_box(uint32 target, const TensorMapParam& map, uint32 barrier, int column,
                               int row, int head, int batch, uint64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(target),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "l"(policy)
      : "memory");
}

/// Copies from `source` to the box. Belongs to the thread's next group.
FLASHTILE_DEVICE void store_box(const TensorMapParam& map, uint32 source, int column, int row,
                                int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          &map),
      "r"(source), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}
FLASHTILE_DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until shared memory of all the thread's groups has been read.
FLASHTILE_DEVICE void wait_until_stores_have_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
/// Waits until all the thread's groups have ended.
FLASHTILE_DEVICE void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace flashtile::device
