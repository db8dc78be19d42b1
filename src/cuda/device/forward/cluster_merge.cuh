// SPDX-License-Identifier: Apache-2.0
//
// One result from the splits of a tile's keys where these are the CTAs of a cluster, so that no
// other kernel has to do it (attention_combine):
//
//   lse = log(sum over splits of e^lse_s, and e^sink);  out = sum of e^(lse_s - lse) out_s
//
// Each CTA leaves lse_s and out_s of all rows in its shared memory, at the places of its first
// warp. The warps of all CTAs share the rows; lanes are the columns. The order of sums is fixed, so
// that the result is the same in every run.
#pragma once

#include "cuda/device/epilogue/lanes.cuh"
#include "cuda/device/epilogue/store_rows.cuh"
#include "cuda/device/forward/forward_places.cuh"
#include "cuda/device/ptx/exchange.cuh"

namespace flashtile::device {

/// `Work` is what has run: a ForwardBase.
template <class Work>
struct ClusterMerge {
  using Config = typename Work::Config;
  using Places = ForwardPlaces<Work>;
  /// Splits whose columns are asked for at once.
  static constexpr int kAhead = 4;

  /// Adds four columns of all splits; `weight` is that of the split with the lane's number.
  FLASHTILE_DEVICE static void add_splits(float (&total)[4], uint32 columns, float weight,
                                          int num_splits) {
    FLASHTILE_NO_UNROLL
    for (int first = 0; first < num_splits; first += kAhead) {
      float parts[kAhead][4];
      FLASHTILE_UNROLL
      for (int s = 0; s < kAhead; ++s) {
        const int split = first + s < num_splits ? first + s : num_splits - 1;
        load_from_cluster(parts[s], address_in_cluster(columns, split));
      }
      FLASHTILE_UNROLL
      for (int s = 0; s < kAhead; ++s) {
        // One that has seen nothing, or is not there, is passed over; NaN is neither.
        const float of_split = shuffle(weight, first + s);
        if (of_split == 0.0f) continue;
        FLASHTILE_UNROLL
        for (int e = 0; e < 4; ++e) total[e] += of_split * parts[s][e];
      }
    }
  }

  /// A row of the tile, by one warp.
  FLASHTILE_DEVICE static void merge_row(const Work& work, int row) {
    const AttentionParams& params = work.params;
    const int num_splits = params.grid.num_splits;
    const int head = work.rows.head_of(row);
    const float sink = sink_of(params, head);
    const uint32 number = Places::number_address(work, 0, row);
    const float lse = lane_idx() < num_splits
                          ? load_from_cluster(address_in_cluster(number, lane_idx()))
                          : -infinity();
    const float highest = highest_of_lanes(larger(lse, sink));
    const float base = highest == -infinity() ? 0.0f : highest;
    const float weight = exp2_approx((lse - base) * kLog2e);
    const float sum = sum_of_lanes(weight) + exp2_approx((sink - base) * kLog2e);
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    FLASHTILE_UNROLL
    for (int first = 0; first < Config::kHeadDimV; first += 4 * kWarpSize) {
      const int col = first + lane_idx() * 4;
      const bool is_there = col < Config::kHeadDimV;
      float total[4] = {};
      add_splits(total,
                 Places::sums_address(work, 0, row) + static_cast<uint32>(is_there ? col * 4 : 0),
                 weight, num_splits);
      FLASHTILE_UNROLL
      for (int e = 0; e < 4; ++e) total[e] *= factor;
      if (is_there) {
        store_quad<Config::kOutElement, Config::kStoreVectors>(Places::out_row(work, row), col,
                                                               work.num_value_columns(),
                                                               params.out.element_stride, total);
      }
    }
    if (lane_idx() == 0 && params.lse.data != nullptr && Work::state().tile.v_part == 0) {
      *query_scalar(params.lse, work.sequence, work.rows.q_idx(row), head) =
          sum == 0.0f ? -infinity() : base + log_precise(sum);
    }
  }

  /// By all threads of the CTA.
  FLASHTILE_DEVICE static void run(const Work& work) {
    constexpr int kWarps = Work::kThreads / kWarpSize;
    const int num_splits = work.params.grid.num_splits;
    sync_cluster();
    FLASHTILE_NO_UNROLL
    for (int row = Work::state().tile.split_idx + num_splits * warp_idx(); row < Config::kBlockM;
         row += num_splits * kWarps) {
      if (work.rows.is_there(row)) merge_row(work, row);
    }
    sync_cluster();  // Others have read what is here.
  }
};

}  // namespace flashtile::device
