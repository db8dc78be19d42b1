// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/simd/types.hpp"

namespace flashtile::cpu {

/// Rows to be fetched into the second cache while products run, some lines for each tile: as many
/// as the processor waits for at once. Rows that lie far apart it does not see coming by itself.
/// With a `period` a tile fetches as many lines again after so many of its steps: where a tile
/// would have to fetch more than that.
struct RowPrefetch {
  static constexpr int kMaxSets = 12;
  static constexpr int64_t kLine = 64;
  struct Set {
    const char* row;
    int64_t row_stride;
    int64_t num_rows;
    int64_t row_bytes;
  };
  Set sets[kMaxSets];
  int num_sets = 0;
  int64_t lines_a_tile = 0;
  int64_t period = INT64_MAX;
  int current = 0;
  int64_t at = 0;  ///< in the current row

  FLASHTILE_INLINE void add(const Set& set) {
    if (num_sets < kMaxSets && set.num_rows > 0 && set.row_bytes > 0) sets[num_sets++] = set;
  }
  FLASHTILE_INLINE int64_t num_lines() const {
    int64_t lines = 0;
    for (int n = 0; n < num_sets; ++n) {
      lines += sets[n].num_rows * ((sets[n].row_bytes + kLine - 1) / kLine);
    }
    return lines;
  }
  FLASHTILE_INLINE void step() {
    for (int64_t left = lines_a_tile; left > 0 && current < num_sets;) {
      Set& set = sets[current];
      const char* line = set.row + at;
      const int64_t in_row = (set.row_bytes - at + kLine - 1) / kLine;
      const int64_t count = left < in_row ? left : in_row;
      for (int64_t n = 0; n < count; ++n) __builtin_prefetch(line + n * kLine, 0, 2);
      left -= count;
      at += count * kLine;
      if (at < set.row_bytes) continue;
      at = 0;
      set.row += set.row_stride;
      if (--set.num_rows == 0) ++current;
    }
  }
};

}  // namespace flashtile::cpu
