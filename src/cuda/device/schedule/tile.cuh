// SPDX-License-Identifier: Apache-2.0
//
// What a CTA works on, and the rows of its query tile.
//
// With `kPackHeads` the query heads that share a key head are rows of one tile, queries outermost:
// row r is query r / group_size of head head + r % group_size. Keys are then read once for all.
#pragma once

#include "cuda/device/schedule/sequence.cuh"

namespace flashtile::device {

struct Tile {
  int m_block = 0;
  int head = 0;       ///< with packed heads: the first of the group
  int batch_idx = 0;  ///< batch_size: the rows of packed q that no sequence covers
  int split_idx = 0;
  int v_part = 0;
};

/// Decodes a CTA's number. (batch, head) pairs come in sections whose keys stay in the L2 cache
/// together; within a section the query blocks are outermost, those with the most keys first.
template <bool kPackHeads>
FLASHTILE_DEVICE Tile find_tile(const AttentionParams& params, int64 cta) {
  const GridParam& grid = params.grid;
  const uint32 num_heads = static_cast<uint32>(kPackHeads ? params.num_heads_kv : params.num_heads);
  const uint32 num_sequences =
      static_cast<uint32>(params.lengths.batch_size + (params.lengths.cu_seqlens_q.data ? 1 : 0));
  const uint32 num_pairs = num_heads * num_sequences;
  const uint32 num_parts = static_cast<uint32>(grid.num_splits * grid.num_v_parts);
  const uint32 num_units = static_cast<uint32>(grid.num_m_blocks) * num_parts;
  const uint32 per_section = static_cast<uint32>(grid.section_heads) * num_units;
  const uint32 section = static_cast<uint32>(cta) / per_section;
  const uint32 rest = static_cast<uint32>(cta) % per_section;
  const uint32 first_pair = section * static_cast<uint32>(grid.section_heads);
  const uint32 pairs_here = num_pairs - first_pair < static_cast<uint32>(grid.section_heads)
                                ? num_pairs - first_pair
                                : static_cast<uint32>(grid.section_heads);
  const uint32 unit = rest / pairs_here;
  const uint32 pair = first_pair + rest % pairs_here;
  const uint32 part = unit % num_parts;
  Tile tile;
  tile.m_block = static_cast<int>(unit / num_parts);
  if (grid.descending) tile.m_block = grid.num_m_blocks - 1 - tile.m_block;
  tile.head = static_cast<int>(pair % num_heads) * (kPackHeads ? params.group_size : 1);
  tile.batch_idx = static_cast<int>(pair / num_heads);
  tile.split_idx = static_cast<int>(part % static_cast<uint32>(grid.num_splits));
  tile.v_part = static_cast<int>(part / static_cast<uint32>(grid.num_splits));
  return tile;
}

/// Rows [first, first + block_m) of the (packed) rows of a sequence and head.
template <bool kPackHeads>
struct QueryRows {
  int first;
  int num_rows;  ///< of the sequence; rows from here on are not there
  int group_size;
  int head;

  QueryRows() = default;
  FLASHTILE_DEVICE QueryRows(const AttentionParams& params, const Sequence& sequence,
                             const Tile& tile, int block_m)
      : first(tile.m_block * block_m),
        num_rows(sequence.seqlen_q * (kPackHeads ? params.group_size : 1)),
        group_size(params.group_size),
        head(tile.head) {}

  FLASHTILE_DEVICE bool is_there(int row) const { return first + row < num_rows; }
  /// Rows that are not there stand for the last one that is.
  FLASHTILE_DEVICE int q_idx(int row) const {
    const int there = is_there(row) ? first + row : num_rows - 1;
    return kPackHeads ? there / group_size : there;
  }
  FLASHTILE_DEVICE int head_of(int row) const {
    if constexpr (!kPackHeads) return head;
    const int there = is_there(row) ? first + row : num_rows - 1;
    return head + there % group_size;
  }
};

}  // namespace flashtile::device
