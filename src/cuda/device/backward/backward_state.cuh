// SPDX-License-Identifier: Apache-2.0
//
// What all threads of a backward CTA know in common, in shared memory.
#pragma once

#include "cuda/device/backward/padded_rows.cuh"
#include "cuda/device/schedule/query_blocks.cuh"
#include "cuda/device/schedule/tile.cuh"
#include "cuda/device/score/score.cuh"

namespace flashtile::device {

template <class Config>
struct BackwardState {
  Sequence sequence;
  variant::PositionMask position;
  QueryBlocks<Config::kBlockM> blocks;
  int64 padded_row;  ///< of query 0
  int head_kv;
  int head_begin, head_end;  ///< heads of the group that these masks hold for
  int first_key;
  int num_keys;  ///< of this block; 0: none

  /// Fills the state of CTA `cta`; by one thread. Blocks of keys that most queries see come first.
  FLASHTILE_DEVICE void find(const AttentionParams& params,
                             const typename Config::Expressions::Params& user, int64 cta) {
    const GridPlace at = find_place(params.grid, cta);
    uint32 head;
    sequence = load_sequence(params, static_cast<int>(divide(at.pair, params.grid.heads, head)));
    head_kv = static_cast<int>(head);
    first_key = static_cast<int>(at.unit) * Config::kBlockN;
    num_keys = clamp(sequence.seqlen_k - first_key, 0, Config::kBlockN);
    if (num_keys == 0) return;
    padded_row = device::padded_row(params, sequence);
    find_first_head(params, user);
  }

  /// Where masks by position differ between heads, the first head comes alone.
  FLASHTILE_DEVICE void find_first_head(const AttentionParams& params,
                                        const typename Config::Expressions::Params& user) {
    head_begin = head_kv * params.group_size;
    head_end = head_begin + (Config::kHeadsDiffer ? 1 : params.group_size);
    find_masks(params, user);
  }

  FLASHTILE_DEVICE void find_masks(const AttentionParams& params,
                                   const typename Config::Expressions::Params& user) {
    position = find_position_mask<Config>(params, user, sequence, head_begin);
    blocks = QueryBlocks<Config::kBlockM>(position, sequence.seqlen_q, first_key, Config::kBlockN);
  }

  /// The next head, where heads come one by one.
  FLASHTILE_DEVICE void find_next_head(const AttentionParams& params,
                                       const typename Config::Expressions::Params& user) {
    head_begin = head_end++;
    find_masks(params, user);
  }

  /// What the map says of a step: of pairs that positions leave.
  FLASHTILE_DEVICE Cover mapped_cover(const AttentionParams& params, int head, int m_block) const {
    if constexpr (Config::kHasBlockMap) {
      const uint32* row =
          map_row(params.blocks, sequence.batch_idx, head, m_block, params.grid.num_m_blocks);
      const int n_block = first_key / Config::kBlockN;
      const uint32 word = load_global(row + n_block / kCoversPerWord);
      return static_cast<Cover>((word >> (2 * (n_block % kCoversPerWord))) & 3u);
    }
    return Cover::kFull;
  }

  /// How much of a step is seen.
  FLASHTILE_DEVICE Cover cover(const AttentionParams& params, int head, int m_block) const {
    const Cover mapped = mapped_cover(params, head, m_block);
    if (mapped != Cover::kFull) return mapped;
    return blocks.is_full(m_block) ? Cover::kFull : Cover::kPart;
  }
};

}  // namespace flashtile::device
