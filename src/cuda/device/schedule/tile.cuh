// SPDX-License-Identifier: Apache-2.0
//
// What a CTA works on, and the rows of its query tile.
//
// With `kPackHeads` the query heads that share a key head are rows of one tile, queries outermost:
// row r is query r / group_size of head head + r % group_size. Keys are then read once for all.
#pragma once

#include "cuda/device/ptx/math.cuh"
#include "cuda/device/schedule/sequence.cuh"

namespace flashtile::device {

struct Tile {
  int m_block = 0;
  int head = 0;       ///< with packed heads: the first of the group
  int batch_idx = 0;  ///< batch_size: the rows of packed q that no sequence covers
  int split_idx = 0;
  int v_part = 0;
};

/// n / divisor, and what is left.
FLASHTILE_DEVICE uint32 divide(uint32 n, const DivisorParam& divisor, uint32& rest) {
  const uint32 quotient = (multiply_high(n, divisor.magic) + n) >> divisor.shift;
  rest = n - quotient * divisor.value;
  return quotient;
}

/// A (batch, head) pair, and which piece of its work.
struct GridPlace {
  uint32 pair, unit;
};

/// Decodes a CTA's number. Pairs come in sections whose rows stay in the L2 cache together; within
/// a section units are outermost.
FLASHTILE_DEVICE GridPlace find_place(const GridParam& grid, int64 cta) {
  uint32 rest, place;
  const uint32 section = divide(static_cast<uint32>(cta), grid.ctas_per_section, rest);
  const uint32 first_pair = section * grid.pairs_per_section.value;
  const bool is_last = first_pair + grid.pairs_per_section.value > grid.num_pairs;
  const uint32 unit =
      divide(rest, is_last ? grid.pairs_of_last_section : grid.pairs_per_section, place);
  return {first_pair + place, unit};
}

/// What a CTA works on; query blocks with the most keys come first.
template <bool kPackHeads>
FLASHTILE_DEVICE Tile find_tile(const AttentionParams& params, int64 cta) {
  const GridParam& grid = params.grid;
  const GridPlace at = find_place(grid, cta);
  uint32 part, head;
  Tile tile;
  tile.m_block = static_cast<int>(divide(at.unit, grid.parts, part));
  if (grid.descending) tile.m_block = grid.num_m_blocks - 1 - tile.m_block;
  tile.batch_idx = static_cast<int>(divide(at.pair, grid.heads, head));
  tile.head = static_cast<int>(head) * (kPackHeads ? params.group_size : 1);
  uint32 split;
  tile.v_part = static_cast<int>(divide(part, grid.splits, split));
  tile.split_idx = static_cast<int>(split);
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
