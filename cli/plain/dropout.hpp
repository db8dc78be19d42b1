// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace flashtile::cli {

/// Dropout by its definition: Philox4x32-7 keyed on the seed, counter (offset, batch * heads +
/// head, row, 4 (j / 32) + (j mod 8) / 2), and sixteen bits for each column.
struct DropoutRow {
  uint64_t seed = 0;
  uint32_t offset = 0;
  uint32_t plane = 0;  ///< batch * num_heads + head
  uint32_t threshold = 0;

  /// keep[j] = 1 where column j of row q_idx is kept.
  void keep(int64_t q_idx, std::span<uint8_t> keep) const;
};

}  // namespace flashtile::cli
