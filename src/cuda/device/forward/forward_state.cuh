// SPDX-License-Identifier: Apache-2.0
//
// What all threads of a forward CTA know in common. It lies in shared memory, because the inner
// loop needs its registers for accumulators.
#pragma once

#include "cuda/device/ptx/exchange.cuh"
#include "cuda/device/score/score.cuh"

namespace flashtile::device {

template <class Config>
struct ForwardState {
  // The portable kernel asks at run time: to know took it as many registers up as down.
  static constexpr bool kHasMap =
      !Config::kValuesInKeys || Config::kHasBlockList || Config::Expressions::kHasMask;
  using Blocks = KeyBlocks<Config::kBlockN, kHasMap>;
  Tile tile;
  Sequence sequence;
  variant::PositionMask position;
  QueryRows<Config::kPackHeads> rows;
  Blocks blocks;
  KeyRows<Config::kPaged> keys, values;

  FLASHTILE_DEVICE bool is_uncovered(const AttentionParams& params) const {
    return tile.batch_idx == params.lengths.batch_size;
  }
  FLASHTILE_DEVICE bool is_empty() const { return rows.first >= rows.num_rows; }

  /// Fills the state of CTA `cta` but for keys and values; by one thread. All others wait for it,
  /// so that its time is that of its longest chain of instructions.
  FLASHTILE_DEVICE void find(const AttentionParams& params,
                             const typename Config::Expressions::Params& user, int64 cta) {
    tile = find_tile<Config::kPackHeads>(params, cta);
    if (is_uncovered(params)) return;
    const int map_head = Config::kPackHeads ? head_kv_of(params, tile) : tile.head;
    if constexpr (Config::kHasOrder) {
      tile.m_block =
          load_fresh(params.blocks.order + map_line(params.blocks, tile.batch_idx, map_head,
                                                    tile.m_block, params.grid.num_m_blocks));
    }
    sequence = load_sequence<Config::kHasLengths>(params, tile.batch_idx);
    rows = QueryRows<Config::kPackHeads>(params, sequence, tile, Config::kBlockM);
    if (is_empty()) return;
    position = find_position_mask<Config>(params, user, sequence, tile.head);
    blocks = Blocks(
        position, rows.q_idx(0), rows.q_idx(Config::kBlockM - 1),
        map_row(params.blocks, tile.batch_idx, map_head, tile.m_block, params.grid.num_m_blocks));
    if constexpr (Config::kIsSplit) blocks.take_split(tile.split_idx, params.grid.num_splits);
  }

  /// Where keys and values lie; by a thread of another warp at the same time.
  FLASHTILE_DEVICE void find_keys(const AttentionParams& params, int64 cta) {
    const Tile of = find_tile<Config::kPackHeads>(params, cta);
    if (of.batch_idx == params.lengths.batch_size) return;
    const Sequence its = load_sequence<Config::kHasLengths>(params, of.batch_idx);
    const int head_kv = head_kv_of(params, of);
    keys = KeyRows<Config::kPaged>(params.k, params.lengths, its, head_kv, 0);
    values = KeyRows<Config::kPaged>(params.v, params.lengths, its, head_kv,
                                     of.v_part * Config::kHeadDimV);
  }

  FLASHTILE_DEVICE static int head_kv_of(const AttentionParams& params, const Tile& of) {
    uint32 rest;
    return static_cast<int>(divide(static_cast<uint32>(of.head), params.group, rest));
  }
};

}  // namespace flashtile::device
