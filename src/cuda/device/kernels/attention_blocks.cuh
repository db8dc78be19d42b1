// SPDX-License-Identifier: Apache-2.0
//
// attention_blocks: which key blocks each query tile visits, from the user's mask and block lists,
// so that the kernels after it never touch what is hidden. Every pair is asked once for all heads
// (and sequences) that it holds for, and a block only until it has shown both a pair that is seen
// and one that is not.
//
// map: two bits for each (batch, head, m_block, n_block). A warp makes one word: 16 key blocks of a
// query tile. Positions are known: blocks outside the tile's range cost nothing.
#pragma once

#include "cuda/device/ptx/thread.cuh"
#include "cuda/device/score/score.cuh"

namespace flashtile::device {

template <class Config>
struct BlockMap {
  static constexpr int kThreads = 128;

  const AttentionParams& params;
  const typename Config::Expressions::Params& user;

  /// The cover of one key block; the lanes share its keys.
  template <class Rows>
  FLASHTILE_DEVICE static Cover cover_of(const ScoreRules<Config>& rules, const Rows& rows,
                                         int n_block) {
    bool has_seen = false;
    bool has_hidden = false;
    FLASHTILE_NO_UNROLL
    for (int row = 0; row < Config::kBlockM && rows.is_there(row); ++row) {
      const int q_idx = rows.q_idx(row);
      const int head = rows.head_of(row);
      const variant::KeyRange range = rules.position.keys(q_idx);
      FLASHTILE_NO_UNROLL
      for (int key = n_block * Config::kBlockN + lane_idx(); key < (n_block + 1) * Config::kBlockN;
           key += kWarpSize) {
        if (key < range.begin || key >= range.end) continue;
        (rules.is_kept(head, q_idx, key) ? has_seen : has_hidden) = true;
      }
      // Asking costs as much as a few pairs.
      if (row % 4 == 3 && any_lane(has_seen) && any_lane(has_hidden)) return Cover::kPart;
    }
    if (!any_lane(has_seen)) return Cover::kNone;
    return any_lane(has_hidden) ? Cover::kPart : Cover::kFull;
  }

  FLASHTILE_DEVICE uint32 make_word(int map_batch, int map_head, int m_block, int word) const {
    Tile tile;
    tile.batch_idx = map_batch;
    tile.m_block = m_block;
    // Where heads do not differ, the first one speaks for all.
    tile.head = map_head * (Config::kPackHeads ? params.group_size : 1);
    const Sequence sequence = load_sequence(params, tile.batch_idx);
    const QueryRows<Config::kPackHeads> rows(params, sequence, tile, Config::kBlockM);
    if (rows.first >= rows.num_rows) return 0;
    const variant::PositionMask position =
        find_position_mask<Config>(params, user, sequence, tile.head);
    const ScoreRules<Config> rules{params, user, sequence, position};
    const KeyBlocks<Config::kBlockN> blocks(position, rows.q_idx(0),
                                            rows.q_idx(Config::kBlockM - 1), nullptr);
    uint32 bits = 0;
    for (int i = 0; i < kCoversPerWord; ++i) {
      const int n_block = word * kCoversPerWord + i;
      if (n_block < blocks.begin || n_block >= blocks.end) continue;
      bits |= static_cast<uint32>(cover_of(rules, rows, n_block)) << (2 * i);
    }
    return bits;
  }

  FLASHTILE_DEVICE void run() const {
    const BlocksParam& blocks = params.blocks;
    const int64 num_words = static_cast<int64>(blocks.map_batches) * blocks.map_heads *
                            params.grid.num_m_blocks * blocks.map_words;
    const int64 step = num_ctas() * (kThreads / kWarpSize);
    for (int64 at = cta_idx() * (kThreads / kWarpSize) + warp_idx(); at < num_words; at += step) {
      const int64 line = at / blocks.map_words;
      const int64 plane = line / params.grid.num_m_blocks;
      const uint32 bits = make_word(static_cast<int>(plane / blocks.map_heads),
                                    static_cast<int>(plane % blocks.map_heads),
                                    static_cast<int>(line % params.grid.num_m_blocks),
                                    static_cast<int>(at % blocks.map_words));
      if (lane_idx() == 0) blocks.map[at] = bits;
    }
  }
};

}  // namespace flashtile::device

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::BlockMap<Config>::kThreads, 4)
    attention_blocks(FLASHTILE_PARAMETER flashtile::device::AttentionParams params,
                     FLASHTILE_PARAMETER Config::Expressions::Params user) {
  const flashtile::device::BlockMap<Config> kernel{params, user};
  kernel.run();
}
