// SPDX-License-Identifier: Apache-2.0
//
// The key blocks that a query tile visits, from the last to the first: the masked ones mostly come
// first then, and a running maximum settles early.
#pragma once

#include "cuda/device/ptx/math.cuh"
#include "cuda/device/schedule/sequence.cuh"

namespace flashtile::device {

/// How much of a (query tile, key block) pair is seen, as the map of blocks stores it.
enum class Cover : uint32 { kNone = 0, kPart = 1, kFull = 3 };

constexpr int kCoversPerWord = 16;

/// The number of a query tile among those that the map of blocks knows.
FLASHTILE_DEVICE int64 map_line(const BlocksParam& blocks, int batch_idx, int map_head, int m_block,
                                int num_m_blocks) {
  const int64 b = blocks.map_batches == 1 ? 0 : batch_idx;
  const int64 h = blocks.map_heads == 1 ? 0 : map_head;
  return (b * blocks.map_heads + h) * num_m_blocks + m_block;
}

/// Where the map of blocks holds the covers of one query tile; null: there is no map.
FLASHTILE_DEVICE const uint32* map_row(const BlocksParam& blocks, int batch_idx, int map_head,
                                       int m_block, int num_m_blocks) {
  if (blocks.map == nullptr) return nullptr;
  return blocks.map + map_line(blocks, batch_idx, map_head, m_block, num_m_blocks) *
                          static_cast<int64>(blocks.map_words);
}

/// kHasMap: masks other than by position may leave blocks out.
template <int kBlockN, bool kHasMap = true>
struct KeyBlocks {
  int begin = 0, end = 0;            ///< visited blocks lie in [begin, end)
  int full_begin = 0, full_end = 0;  ///< positions hide nothing in these
  int key_begin = 0, key_end = 0;    ///< keys that some query of the tile sees, by position
  const uint32* map = nullptr;

  KeyBlocks() = default;
  FLASHTILE_DEVICE KeyBlocks(const variant::PositionMask& mask, int first_q_idx, int last_q_idx,
                             const uint32* block_map)
      : map(block_map) {
    // Both ends of what a query sees only move forward from one query to the next.
    const variant::KeyRange first = mask.keys(first_q_idx);
    const variant::KeyRange last = mask.keys(last_q_idx);
    if (last.end <= first.begin) return;
    key_begin = static_cast<int>(first.begin);
    key_end = static_cast<int>(last.end);
    begin = key_begin / kBlockN;
    end = (key_end + kBlockN - 1) / kBlockN;
    // An empty range may begin or end anywhere.
    if (last.begin < last.end) full_begin = static_cast<int>((last.begin + kBlockN - 1) / kBlockN);
    if (first.begin < first.end) full_end = static_cast<int>(first.end / kBlockN);
  }

  /// Leaves one of `num_splits` parts.
  FLASHTILE_DEVICE void take_split(int split_idx, int num_splits) {
    const int count = end - begin;
    const int each = (count + num_splits - 1) / num_splits;
    const int part_begin = begin + split_idx * each;
    if (end > part_begin + each) end = part_begin + each;
    begin = part_begin;
  }

  /// What the map says: of pairs that positions leave.
  FLASHTILE_DEVICE Cover mapped_cover(int n_block) const {
    if (!kHasMap || map == nullptr) return Cover::kFull;
    const uint32 word = load_global(map + n_block / kCoversPerWord);
    return static_cast<Cover>((word >> (2 * (n_block % kCoversPerWord))) & 3u);
  }

  FLASHTILE_DEVICE Cover cover(int n_block) const {
    const Cover mapped = mapped_cover(n_block);
    if (mapped != Cover::kFull) return mapped;
    return n_block >= full_begin && n_block < full_end ? Cover::kFull : Cover::kPart;
  }

  /// The next block to visit below `n_block`; less than `begin`: none.
  FLASHTILE_DEVICE int before(int n_block) const {
    --n_block;
    if constexpr (kHasMap) {
      if (map == nullptr) return n_block;
      // A word of the map at a time.
      while (n_block >= begin) {
        const int last = n_block % kCoversPerWord;
        const uint32 visited = load_global(map + n_block / kCoversPerWord) << (30 - 2 * last);
        if (visited != 0) return n_block - leading_zeros(visited) / 2;
        n_block -= last + 1;
      }
    }
    return n_block;
  }
  /// Each key of the block is seen by some query, by position.
  FLASHTILE_DEVICE bool is_whole(int n_block) const {
    const int first_key = n_block * kBlockN;
    return first_key >= key_begin && first_key + kBlockN <= key_end;
  }
  FLASHTILE_DEVICE bool holds(int n_block) const { return n_block >= begin; }
};

}  // namespace flashtile::device
