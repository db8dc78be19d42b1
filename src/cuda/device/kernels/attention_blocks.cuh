// SPDX-License-Identifier: Apache-2.0
//
// attention_blocks: which key blocks each query tile visits, from the user's mask and block lists,
// so that the kernels after it never touch what is hidden. A block is decided by the ranges of what
// its pairs read where these tell (score/ranges.cuh): documents, prefixes, dilated blocks.
// Otherwise its pairs are asked, until there was both one that is seen and one that is not. All
// this once for all heads (and sequences) that it holds for.
//
// map: two bits for each (batch, head, m_block, n_block). A CTA makes one word: 16 key blocks of a
// query tile, one for each warp. Positions are known: blocks outside the tile's range cost nothing.
#pragma once

#include "cuda/device/params/attention_params.hpp"
#include "cuda/device/ptx/thread.cuh"
#include "cuda/device/score/ranges.cuh"
#include "cuda/device/score/score.cuh"

namespace flashtile::device {

template <class Config>
struct BlockMap {
  static constexpr int kThreads = BlockMapShape::kThreads;
  static_assert(kThreads == kCoversPerWord * kWarpSize, "a warp for each block of a word");
  /// Rows that are asked side by side: a key's values are loaded once for them.
  static constexpr int kRowsAtOnce = 8;

  const AttentionParams& params;
  const typename Config::Expressions::Params& user;

  /// The cover of one key block; the lanes share its keys.
  template <class Rows>
  FLASHTILE_DEVICE static Cover cover_of(const ScoreRules<Config>& rules, const Rows& rows,
                                         int n_block) {
    bool has_seen = false;
    bool has_hidden = false;
    int range_begin = 0;
    int range_end = 0;
    // Rows that lie far apart differ most.
    constexpr int kDistance = Config::kBlockM / kRowsAtOnce;
    constexpr int kStepsAtOnce = kWarpSize / kRowsAtOnce;
    FLASHTILE_NO_UNROLL
    for (int step = 0; step < kDistance; ++step) {
      // Each lane works out what one of the next rows sees by position.
      if (step % kStepsAtOnce == 0) {
        const int row = lane_idx() % kRowsAtOnce * kDistance + step + lane_idx() / kRowsAtOnce;
        const variant::KeyRange range = rules.position.keys(rows.q_idx(row));
        range_begin = static_cast<int>(clamp<int64>(range.begin, 0, rules.sequence.seqlen_k));
        range_end = static_cast<int>(clamp<int64>(range.end, 0, rules.sequence.seqlen_k));
      }
      FLASHTILE_NO_UNROLL
      for (int begin = 0; begin < Config::kBlockN; begin += kWarpSize) {
        const int key = n_block * Config::kBlockN + begin + lane_idx();
        const bool is_own = begin + lane_idx() < Config::kBlockN;
        FLASHTILE_UNROLL
        for (int i = 0; i < kRowsAtOnce; ++i) {
          // Rows that are not there repeat the last one.
          const int row = i * kDistance + step;
          const int lane = step % kStepsAtOnce * kRowsAtOnce + i;
          const bool is_known =
              is_own & (key >= shuffle(range_begin, lane)) & (key < shuffle(range_end, lane));
          const bool is_kept = rules.is_kept(rows.head_of(row), rows.q_idx(row), key);
          has_seen = has_seen | (is_known & is_kept);
          has_hidden = has_hidden | (is_known & !is_kept);
        }
      }
      if (any_lane(has_seen) && any_lane(has_hidden)) return Cover::kPart;
    }
    if (!any_lane(has_seen)) return Cover::kNone;
    return any_lane(has_hidden) ? Cover::kPart : Cover::kFull;
  }

  /// All pairs of the tile and a key block, or more: those that some query of the tile may see.
  template <class Rows, class Blocks>
  FLASHTILE_DEVICE expression::PairRange pairs_of(const Sequence& sequence, const Rows& rows,
                                                  const Blocks& blocks, int n_block) const {
    const int first_key = n_block * Config::kBlockN;
    const int last_key = first_key + Config::kBlockN - 1;
    const int head = rows.head;
    const int last_head = Config::kPackHeads ? head + params.group_size - 1 : head;
    return expression::pair_range(sequence, {head, last_head}, params.group_size,
                                  {rows.q_idx(0), rows.q_idx(Config::kBlockM - 1)},
                                  {first_key < blocks.key_begin ? blocks.key_begin : first_key,
                                   last_key < blocks.key_end ? last_key : blocks.key_end - 1});
  }

  FLASHTILE_DEVICE Cover find_cover(int map_batch, int map_head, int m_block, int n_block) const {
    Tile tile;
    tile.batch_idx = map_batch;
    tile.m_block = m_block;
    // Where heads do not differ, the first one speaks for all.
    tile.head = map_head * (Config::kPackHeads ? params.group_size : 1);
    const Sequence sequence = load_sequence(params, tile.batch_idx);
    const QueryRows<Config::kPackHeads> rows(params, sequence, tile, Config::kBlockM);
    if (rows.first >= rows.num_rows) return Cover::kNone;
    const variant::PositionMask position =
        find_position_mask<Config>(params, user, sequence, tile.head);
    const KeyBlocks<Config::kBlockN> blocks(position, rows.q_idx(0),
                                            rows.q_idx(Config::kBlockM - 1), nullptr);
    if (n_block < blocks.begin || n_block >= blocks.end) return Cover::kNone;
    if constexpr (Config::Expressions::kHasMask) {
      const expression::Truth kept =
          Config::Expressions::mask_range(user, pairs_of(sequence, rows, blocks, n_block));
      if (!kept.may_hold) return Cover::kNone;
      if (!Config::kHasBlockList && !kept.may_fail) return Cover::kFull;
    }
    const ScoreRules<Config> rules{params, user, sequence, position};
    return cover_of(rules, rows, n_block);
  }

  FLASHTILE_DEVICE void run() const {
    const BlocksParam& blocks = params.blocks;
    uint32* covers = reinterpret_cast<uint32*>(shared_memory());
    // All addresses depend on what lies behind a barrier, so that nothing is read before the kernel
    // in front has ended.
    uint32* first = covers + kCoversPerWord;
    if (thread_idx() == 0) *first = static_cast<uint32>(cta_idx());
    wait_for_previous_grid();
    sync_cta();
    const int64 num_words = static_cast<int64>(blocks.map_batches) * blocks.map_heads *
                            params.grid.num_m_blocks * blocks.map_words;
    for (int64 at = *first; at < num_words; at += num_ctas()) {
      const int64 line = at / blocks.map_words;
      const int64 plane = line / params.grid.num_m_blocks;
      const int word = static_cast<int>(at % blocks.map_words);
      const int warp = warp_idx();
      const Cover cover = find_cover(
          static_cast<int>(plane / blocks.map_heads), static_cast<int>(plane % blocks.map_heads),
          static_cast<int>(line % params.grid.num_m_blocks), word * kCoversPerWord + warp);
      if (lane_idx() == 0) covers[warp] = static_cast<uint32>(cover);
      sync_cta();
      if (thread_idx() == 0) {
        uint32 bits = 0;
        for (int i = 0; i < kCoversPerWord; ++i) bits |= covers[i] << (2 * i);
        blocks.map[at] = bits;
      }
      sync_cta();
    }
  }
};

}  // namespace flashtile::device

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::BlockMap<Config>::kThreads, 1)
    attention_blocks(FLASHTILE_PARAMETER flashtile::device::AttentionParams params,
                     FLASHTILE_PARAMETER Config::Expressions::Params user) {
  // The kernel that reads the map finds its place meanwhile.
  flashtile::device::start_next_grid();
  const flashtile::device::BlockMap<Config> kernel{params, user};
  kernel.run();
}
