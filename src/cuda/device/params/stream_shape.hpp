// SPDX-License-Identifier: Apache-2.0
//
// The shape of the backward kernels that read their operands in chunks of columns, for the kernels
// and for the plan that launches them.
#pragma once

#include "cuda/device/params/shared_bytes.hpp"

namespace flashtile::device {

/// A CTA owns kStreamBlock queries or keys and goes over blocks of as many keys or queries. Each of
/// its warps has 16 rows. Chunks of what it goes over, and unless `rows_stay` of its own rows, pass
/// through a ring; then pieces of what weights are multiplied by.
constexpr int kStreamBlock = 64;

struct StreamShape {
  int element_bytes = 2;
  int head_dim = 0;    ///< padded to whole chunks
  int head_dim_v = 0;  ///< padded to whole chunks
  int chunk = 0;
  int num_stages = 0;
  bool rows_stay = false;

  static constexpr int num_warps() { return kStreamBlock / 16; }
  static constexpr int num_threads() { return 32 * num_warps(); }

  constexpr int num_chunks() const { return (head_dim + head_dim_v) / chunk; }
  constexpr int chunk_bytes() const { return row_tile_bytes(element_bytes, kStreamBlock, chunk); }
  constexpr int piece_bytes() const {
    return column_tile_bytes(element_bytes, kStreamBlock, chunk);
  }
  constexpr int stage_bytes() const {
    const int chunks = chunk_bytes() * (rows_stay ? 1 : 2);
    return chunks > piece_bytes() ? chunks : piece_bytes();
  }
  /// lse, delta and ranges of keys of a block of queries.
  static constexpr int vector_bytes() { return 4 * kStreamBlock * 4; }

  constexpr int ring_begin() const { return rows_stay ? num_chunks() * chunk_bytes() : 0; }
  constexpr int vectors_begin() const { return ring_begin() + num_stages * stage_bytes(); }
  constexpr int state_begin() const { return vectors_begin() + 2 * vector_bytes(); }
  constexpr int shared_bytes() const { return state_begin() + kStateBytes; }

  static constexpr int kStateBytes = 512;
};

}  // namespace flashtile::device
