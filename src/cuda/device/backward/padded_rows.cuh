// SPDX-License-Identifier: Apache-2.0
//
// Where the backward keeps what it knows of a query, and the sums of dq.
#pragma once

#include "cuda/device/copy/rows.cuh"
#include "cuda/device/params/backward_params.hpp"
#include "cuda/device/params/backward_shape.hpp"
#include "cuda/device/ptx/convert.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

/// The row of query 0 of a sequence: a multiple of kRowPadding, with room for all its queries
/// before the next sequence's.
FLASHTILE_DEVICE int64 padded_row(const AttentionParams& params, const Sequence& sequence) {
  if (params.lengths.cu_seqlens_q.data) {
    const int64 row = sequence.q_begin + static_cast<int64>(kRowPadding) * sequence.batch_idx;
    return row / kRowPadding * kRowPadding;
  }
  const int64 each = (params.lengths.max_seqlen_q + kRowPadding - 1) / kRowPadding * kRowPadding;
  return sequence.batch_idx * each;
}

/// Calls `apply(sequence, first row, head)` for kRowPadding rows of a head at a time, warp by warp
/// of a grid of strided CTAs; heads are innermost, since their rows are neighbours in memory.
template <class Apply>
FLASHTILE_DEVICE void for_each_row_block(const AttentionParams& params, int warps_per_cta,
                                         const Apply& apply) {
  const LengthsParam& lengths = params.lengths;
  const int num_blocks = (lengths.max_seqlen_q + kRowPadding - 1) / kRowPadding;
  const int64 count = static_cast<int64>(lengths.batch_size) * num_blocks * params.num_heads;
  const int64 step = num_ctas() * warps_per_cta;
  for (int64 at = cta_idx() * warps_per_cta + warp_idx(); at < count; at += step) {
    const int64 block = at / params.num_heads;
    const Sequence sequence = load_sequence(params, static_cast<int>(block / num_blocks));
    const int first = static_cast<int>(block % num_blocks) * kRowPadding;
    if (first < sequence.seqlen_q) {
      apply(sequence, first, static_cast<int>(at % params.num_heads));
    }
  }
}

/// The place of a 16x8 tile of the sums of dq: rows from `row` of a head, columns 8 column_tile.
template <int kHeadDim>
FLASHTILE_DEVICE float* dq_tile(const BackwardParams& backward, int head, int64 row,
                                int column_tile) {
  const int64 row_tile = (head * backward.padded_rows + row) / kRowPadding;
  return backward.dq_sums + (row_tile * (kHeadDim / 8) + column_tile) * 128;
}

/// Adds a warp's accumulator of 16x8 to a tile. Lanes follow each other with their four elements,
/// or elements with their 32 lanes, whichever is fewer and whole transactions.
FLASHTILE_DEVICE void add_to_dq_tile(float* tile, const float (&acc)[4]) {
  if constexpr (kHasVectorAtomics) {
    atomic_add_vector(tile + lane_idx() * 4, acc);
  } else {
    FLASHTILE_UNROLL
    for (int r = 0; r < 4; ++r) atomic_add(tile + r * kWarpSize + lane_idx(), acc[r]);
  }
}

/// A lane's elements of a tile, as add_to_dq_tile has them.
FLASHTILE_DEVICE void load_dq_tile(const float* tile, float (&acc)[4]) {
  if constexpr (kHasVectorAtomics) {
    load_summed(acc, tile + lane_idx() * 4);
  } else {
    FLASHTILE_UNROLL
    for (int r = 0; r < 4; ++r) acc[r] = load_summed(tile + r * kWarpSize + lane_idx());
  }
}

}  // namespace flashtile::device
