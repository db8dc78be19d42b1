// SPDX-License-Identifier: Apache-2.0
//
// attention_order: the query tiles of a map of blocks (attention_blocks), those that visit the most
// key blocks first, so that no long one is left at the end. A CTA for each (map batch, map head).
#pragma once

#include "cuda/device/epilogue/lanes.cuh"
#include "cuda/device/schedule/cost_counts.cuh"

namespace flashtile::device {

constexpr int kOrderWarps = CostCounts::kThreads / kWarpSize;

/// Calls visit(m_block, cost) for each query tile by one lane; the least cost has the most to do.
template <class Visit>
FLASHTILE_DEVICE void for_each_tile(const BlocksParam& blocks, int64 plane, int num_m_blocks,
                                    const Visit& visit) {
  for (int m = warp_idx(); m < num_m_blocks; m += kOrderWarps) {
    const uint32* row = blocks.map + (plane * num_m_blocks + m) * blocks.map_words;
    const uint32 visits = sum_of_lanes(visits_of(row, blocks.map_words, lane_idx(), kWarpSize));
    const int cost = cost_of(visits);
    if (lane_idx() == 0) visit(m, cost);
  }
}

}  // namespace flashtile::device

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::CostCounts::kThreads, 1)
    attention_order(FLASHTILE_PARAMETER flashtile::device::AttentionParams params) {
  using namespace flashtile::device;
  const BlocksParam& blocks = params.blocks;
  uint32* counts = reinterpret_cast<uint32*>(shared_memory());
  start_next_grid();
  wait_for_previous_grid();
  const int num_m_blocks = params.grid.num_m_blocks;
  const int64 num_planes = static_cast<int64>(blocks.map_batches) * blocks.map_heads;
  for (int64 plane = cta_idx(); plane < num_planes; plane += num_ctas()) {
    for (int i = thread_idx(); i < CostCounts::kNumCosts; i += CostCounts::kThreads) counts[i] = 0;
    sync_cta();
    for_each_tile(blocks, plane, num_m_blocks,
                  [&](int, int cost) { atomic_increment(counts + cost); });
    sync_cta();
    if (warp_idx() == 0) sum_up(counts);
    sync_cta();
    for_each_tile(blocks, plane, num_m_blocks, [&](int m_block, int cost) {
      blocks.order[plane * num_m_blocks + atomic_increment(counts + cost)] = m_block;
    });
    sync_cta();
  }
}
