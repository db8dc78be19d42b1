// SPDX-License-Identifier: Apache-2.0
//
// Which keys the rows of a tile see by position: up to a diagonal, from a lower one on, of one
// chunk. Both ends of what a row sees only move forward from one row to the next.
#pragma once

#include "cuda/device/hopper/sm90_memory.cuh"

namespace flashtile::device {

/// Of the 16 rows of a tile that are a warp's, the one with that number. From a thread's number
/// anew: registers are dear.
FLASHTILE_DEVICE int tile_row(int thread, int number) {
  return (thread / kWarpSize - 4) * 16 + number;
}

template <class Config>
struct Sm90Keys {
  static constexpr int kBlockM = Sm90Memory<Config>::kShape.block_m();
  static constexpr int kBlockN = Config::kBlockN;
  /// Rows see no keys from some bound of their own on.
  static constexpr bool kHasEnd = Config::kHasDiagonal || Config::kHasChunk;
  /// Rows see no keys before some bound of their own.
  static constexpr bool kHasBegin = Config::kHasLower || Config::kHasChunk;

  const Sm90ForwardParams& params;
  const Sm90Tile& tile;

  FLASHTILE_DEVICE Sm90Keys(const Sm90ForwardParams& p, const Sm90Tile& of) : params(p), tile(of) {}

  FLASHTILE_DEVICE int first_row() const { return tile.m_block * kBlockM; }
  FLASHTILE_DEVICE int seqlen_q() const {
    return Config::kHasLengths ? tile.seqlen_q : params.seqlen_q;
  }
  FLASHTILE_DEVICE int seqlen_k() const {
    return Config::kHasLengths ? tile.seqlen_k : params.seqlen_k;
  }

  /// The first key of the chunk that a row lies in.
  FLASHTILE_DEVICE int chunk_begin(int row) const {
    const int position = row + (Config::kHasLengths ? tile.offset : params.offset);
    int rest = position % params.chunk;
    if (rest < 0) rest += params.chunk;
    return position - rest;
  }
  /// Keys from here on are not seen by the row, or are not there.
  FLASHTILE_DEVICE int bound(int row) const {
    int bound = 0x7fffffff;
    if constexpr (Config::kHasDiagonal) {
      bound = row + (Config::kHasLengths ? tile.diagonal : params.diagonal) + 1;
    }
    if constexpr (Config::kHasChunk) {
      const int end = chunk_begin(row) + params.chunk;
      bound = end < bound ? end : bound;
    }
    return bound;
  }
  /// Keys from here on are not seen by the row.
  FLASHTILE_DEVICE int end(int row) const {
    if constexpr (!kHasEnd) return seqlen_k();
    const int own = bound(row);
    return own < seqlen_k() ? own : seqlen_k();
  }
  /// Keys before this are not seen by the row.
  FLASHTILE_DEVICE int begin(int row) const {
    int begin = 0;
    if constexpr (Config::kHasLower) {
      const int own = row + (Config::kHasLengths ? tile.lower : params.lower);
      begin = own < 0 ? 0 : own;
    }
    if constexpr (Config::kHasChunk) {
      const int own = chunk_begin(row);
      begin = own < begin ? begin : own;
    }
    return begin;
  }

  /// One past the last key block that the tile visits; every tile visits one at least.
  FLASHTILE_DEVICE int end_of_blocks() const { return end_of_blocks(kBlockM - 1); }
  /// The same of its rows up to one.
  FLASHTILE_DEVICE int end_of_blocks(int last_row) const {
    int num_keys = end(first_row() + last_row);
    if (num_keys < 1) num_keys = 1;
    return (num_keys + kBlockN - 1) / kBlockN;
  }
  /// The first key block that the tile visits.
  FLASHTILE_DEVICE int begin_of_blocks() const {
    if constexpr (!kHasBegin) return 0;
    const int begin_of_tile = begin(first_row()) / kBlockN;
    const int last = end_of_blocks() - 1;
    return begin_of_tile < last ? begin_of_tile : last;
  }
  /// The block with which a warpgroup begins: those behind it hold no key that its rows see.
  FLASHTILE_DEVICE int first_block_of(int group) const {
    const int last = end_of_blocks(group * 64 + 63) - 1;
    if constexpr (!kHasBegin) return last;
    return last < begin_of_blocks() ? begin_of_blocks() : last;
  }
};

}  // namespace flashtile::device
