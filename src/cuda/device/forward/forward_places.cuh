// SPDX-License-Identifier: Apache-2.0
//
// Where results of a tile go, and parts of them on their way.
#pragma once

#include "cuda/device/copy/rows.cuh"

namespace flashtile::device {

/// `Work` is what has run: a ForwardBase.
template <class Work>
struct ForwardPlaces {
  using Config = typename Work::Config;

  /// Where the columns of a split's part of a row begin.
  FLASHTILE_DEVICE static float* partial_row(const Work& work, int row) {
    const AttentionParams& params = work.params;
    // Rows of all parts side by side, so that each is aligned.
    const int64 row_floats = static_cast<int64>(params.grid.num_v_parts) * Config::kHeadDimV;
    const int64 num_rows = params.lengths.total_q * params.num_heads;
    const int64 flat =
        flat_row(params, work.sequence, work.rows.q_idx(row), work.rows.head_of(row));
    return params.grid.partial_out + (Work::state().tile.split_idx * num_rows + flat) * row_floats +
           work.first_value_column();
  }

  FLASHTILE_DEVICE static char* out_row(const Work& work, int row) {
    const AttentionParams& params = work.params;
    return query_row(params.out, work.sequence, work.rows.q_idx(row), work.rows.head_of(row)) +
           work.first_value_column() * params.out.element_stride;
  }

  // ---- In shared memory: what warps that divided the keys, or splits of a cluster, leave

  /// A number of each warp and row, and its sums of values.
  FLASHTILE_DEVICE static uint32 number_address(const Work& work, int warp_n, int row) {
    return work.shared +
           static_cast<uint32>(Work::kShape.ring_begin() + (warp_n * Config::kBlockM + row) * 8);
  }
  FLASHTILE_DEVICE static uint32 sums_address(const Work& work, int warp_n, int row) {
    return number_address(work, Config::kWarpsN, 0) +
           static_cast<uint32>((warp_n * Config::kBlockM + row) * Work::kShape.merge_pitch() * 4);
  }
};

}  // namespace flashtile::device
