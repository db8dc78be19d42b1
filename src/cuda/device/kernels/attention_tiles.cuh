// SPDX-License-Identifier: Apache-2.0
//
// attention_tiles: the query blocks of packed sequences, those with the most keys first, for
// kernels whose CTAs take one after the other. One CTA; blocks are sorted by counting.
#pragma once

#include "cuda/device/params/sm90_params.hpp"
#include "cuda/device/ptx/exchange.cuh"
#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/thread.cuh"
#include "cuda/device/schedule/sequence.cuh"

namespace flashtile::device {

constexpr int kTileListThreads = 1024;
constexpr int kNumCosts = Sm90TileList::kNumCosts;

/// Calls visit(batch_idx, m_block, cost) for each query block; the least cost has the most keys.
template <class Config, class Visit>
FLASHTILE_DEVICE void for_each_query_block(const AttentionParams& params, const Visit& visit) {
  const int64 most_keys = static_cast<int64>(params.lengths.max_seqlen_k) + 1;
  for (int b = warp_idx(); b < params.lengths.batch_size; b += kTileListThreads / kWarpSize) {
    const Sequence sequence = load_sequence(params, b);
    const variant::PositionMask mask = position_mask(params.position, sequence);
    const int num_blocks = (sequence.seqlen_q + Config::kBlockM - 1) / Config::kBlockM;
    for (int m = lane_idx(); m < num_blocks; m += kWarpSize) {
      const int first = m * Config::kBlockM;
      const int last = clamp(first + Config::kBlockM, 0, sequence.seqlen_q) - 1;
      const int64 keys =
          clamp<int64>(mask.keys(last).end - mask.keys(first).begin, 0, most_keys - 1);
      visit(b, m, kNumCosts - 1 - static_cast<int>(keys * kNumCosts / most_keys));
    }
  }
}

/// Numbers of blocks of each cost become the places of the first of them; by one warp. Gives how
/// many there are.
FLASHTILE_DEVICE uint32 sum_up(uint32* counts) {
  constexpr int kOwn = kNumCosts / kWarpSize;
  uint32* own = counts + lane_idx() * kOwn;
  uint32 sum = 0;
  for (int i = 0; i < kOwn; ++i) sum += own[i];
  uint32 end = sum;
  for (int step = 1; step < kWarpSize; step *= 2) {
    const uint32 before = shuffle(end, lane_idx() < step ? 0 : lane_idx() - step);
    if (lane_idx() >= step) end += before;
  }
  uint32 place = end - sum;
  for (int i = 0; i < kOwn; ++i) {
    const uint32 count = own[i];
    own[i] = place;
    place += count;
  }
  return shuffle(end, kWarpSize - 1);
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
