// SPDX-License-Identifier: Apache-2.0
//
// attention_tiles: the query blocks of packed sequences, or of a map of blocks, those with the most
// keys first, for kernels whose CTAs take one after the other. One CTA; blocks are sorted by
// counting.
#pragma once

#include "cuda/device/params/sm90_params.hpp"
#include "cuda/device/ptx/exchange.cuh"
#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/thread.cuh"
#include "cuda/device/schedule/cost_counts.cuh"
#include "cuda/device/schedule/key_blocks.cuh"
#include "cuda/device/schedule/sequence.cuh"

namespace flashtile::device {

constexpr int kTileListThreads = CostCounts::kThreads;
constexpr int kNumCosts = CostCounts::kNumCosts;

/// Of a query block where a map says which key blocks it visits; a block that masks cut counts as
/// three. The first head speaks for all.
template <class Config>
FLASHTILE_DEVICE int mapped_cost(const AttentionParams& params, int batch_idx, int m_block) {
  constexpr uint32 kLowBits = 0x55555555u;
  const BlocksParam& blocks = params.blocks;
  const uint32* row = map_row(blocks, batch_idx, 0, m_block, params.grid.num_m_blocks);
  uint32 sum = 0;
  for (int i = 0; i < blocks.map_words; ++i) {
    const auto word = static_cast<uint32>(load_fresh(reinterpret_cast<const int*>(row) + i));
    const int num_visited = count_ones(word & kLowBits);
    const int num_full = count_ones(word >> 1 & kLowBits);
    sum += static_cast<uint32>(3 * num_visited - 2 * num_full);
  }
  return cost_of(sum);
}

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
        visit(b, m, mapped_cost<Config>(params, b, m));
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
