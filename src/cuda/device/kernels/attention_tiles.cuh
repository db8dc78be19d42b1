// SPDX-License-Identifier: Apache-2.0
//
// attention_tiles: the query blocks of packed sequences, or of a map of blocks, those with the most
// keys first, for kernels whose CTAs take one after the other. One CTA; blocks are sorted by
// counting.
#pragma once

#include "cuda/device/params/sm90_params.hpp"
#include "cuda/device/ptx/exchange.cuh"
#include "cuda/device/ptx/thread.cuh"
#include "cuda/device/schedule/cost_counts.cuh"
#include "cuda/device/schedule/key_blocks.cuh"
#include "cuda/device/schedule/sequence.cuh"

namespace flashtile::device {

constexpr int kTileListThreads = CostCounts::kThreads;
constexpr int kNumCosts = CostCounts::kNumCosts;

/// Calls visit(batch_idx, m_block, cost) for each query block; the least cost has the most keys.
template <class Config, class Visit>
FLASHTILE_DEVICE void for_each_query_block(const AttentionParams& params, const Visit& visit) {
  const int64 most_keys = static_cast<int64>(params.lengths.max_seqlen_k) + 1;
  for (int b = warp_idx(); b < params.lengths.batch_size; b += kTileListThreads / kWarpSize) {
    const Sequence sequence = load_sequence(params, b);
    const variant::PositionMask mask = position_mask(params.position, sequence);
    // Of tensors that are not packed all rows are written.
    const int num_blocks = Config::kPackedQ
                               ? (sequence.seqlen_q + Config::kBlockM - 1) / Config::kBlockM
                               : params.grid.num_m_blocks;
    for (int m = lane_idx(); m < num_blocks; m += kWarpSize) {
      if constexpr (Config::kIsMapped) {
        // The first head speaks for all.
        const uint32* row = map_row(params.blocks, b, 0, m, params.grid.num_m_blocks);
        visit(b, m, cost_of(visits_of(row, params.blocks.map_words, 0, 1)));
        continue;
      }
      const int first = m * Config::kBlockM;
      const int last = clamp(first + Config::kBlockM, 0, sequence.seqlen_q) - 1;
      const int64 keys =
          clamp<int64>(mask.keys(last).end - mask.keys(first).begin, 0, most_keys - 1);
      visit(b, m, kNumCosts - 1 - static_cast<int>(keys * kNumCosts / most_keys));
    }
  }
}

}  // namespace flashtile::device

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::kTileListThreads, 1)
    attention_tiles(FLASHTILE_PARAMETER flashtile::device::AttentionParams params,
                    FLASHTILE_PARAMETER flashtile::device::Sm90TileList list) {
  using namespace flashtile::device;
  uint32* counts = reinterpret_cast<uint32*>(shared_memory());
  start_next_grid();
  wait_for_previous_grid();
  for (int i = thread_idx(); i < kNumCosts; i += kTileListThreads) counts[i] = 0;
  sync_cta();
  for_each_query_block<Config>(params,
                               [&](int, int, int cost) { atomic_increment(counts + cost); });
  sync_cta();
  if (warp_idx() == 0) {
    const int count = static_cast<int>(sum_up(counts));
    if (lane_idx() == 0) {
      // Sequences that overlap would have more.
      *list.num_entries = count < list.capacity ? count : list.capacity;
    }
  }
  sync_cta();
  for_each_query_block<Config>(params, [&](int batch_idx, int m_block, int cost) {
    const int place = static_cast<int>(atomic_increment(counts + cost));
    if (place >= list.capacity) return;
    list.entries[2 * place] = batch_idx;
    list.entries[2 * place + 1] = m_block;
  });
}
