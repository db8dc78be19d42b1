// SPDX-License-Identifier: Apache-2.0
//
// attention_combine: one result from the parts that attention_fwd_portable left, one for each split
// of the keys.
//
//   lse = log(sum over splits of e^lse_s, and e^sink);  out = sum of e^(lse_s - lse) out_s
//
// partial_out (split, total_q, heads, parts of head_dim_v); partial_lse (split, total_q, heads).
// A row of few splits is a warp's, one of many the whole CTA's, whose warps take splits in turns;
// lanes are the columns. What is waited for is memory: parts of several splits are asked for at
// once, the first of them before their weights are known. The order of sums is fixed, so that the
// result is the same in every run.
#pragma once

#include "cuda/device/copy/rows.cuh"
#include "cuda/device/epilogue/lanes.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

template <class Config>
struct Combine {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kColumns = Config::kColumns;  ///< of a row of partial_out
  static constexpr int kPerLane = (kColumns / 4 + kWarpSize - 1) / kWarpSize;
  /// Splits whose parts are asked for at once.
  static constexpr int kAhead = kPerLane == 1 ? 8 : kPerLane <= 3 ? 4 : 2;

  const AttentionParams& params;
  int64 num_rows;

  FLASHTILE_DEVICE float partial_lse(int split, int64 flat) const {
    return load_written(params.grid.partial_lse + split * num_rows + flat);
  }

  /// The largest of the parts' lse and the sink, and what the parts weigh together.
  FLASHTILE_DEVICE void sum_weights(int64 flat, float sink, float& base, float& sum) const {
    float parts[kMaxSplits / kWarpSize];
    float highest = sink;
    FLASHTILE_UNROLL
    for (int i = 0; i < kMaxSplits / kWarpSize; ++i) {
      const int split = i * kWarpSize + lane_idx();
      parts[i] = split < params.grid.num_splits ? partial_lse(split, flat) : -infinity();
      highest = larger(highest, parts[i]);
    }
    highest = highest_of_lanes(highest);
    base = highest == -infinity() ? 0.0f : highest;
    sum = 0.0f;
    FLASHTILE_UNROLL
    for (int i = 0; i < kMaxSplits / kWarpSize; ++i) {
      sum += exp2_approx((parts[i] - base) * kLog2e);
    }
    sum = sum_of_lanes(sum) + exp2_approx((sink - base) * kLog2e);
  }

  /// Some splits' parts of a row.
  struct Parts {
    float lse[kAhead];
    float columns[kAhead][kPerLane][4];
  };

  /// Of splits first, first + 1, ... kAhead - 1; the last one stands for those that are not there.
  FLASHTILE_DEVICE void load_parts(Parts& parts, int first, int64 flat) const {
    const int last = params.grid.num_splits - 1;
    FLASHTILE_UNROLL
    for (int s = 0; s < kAhead; ++s) {
      const int split = first + s < last ? first + s : last;
      parts.lse[s] = partial_lse(split, flat);
      const float* row = params.grid.partial_out + (split * num_rows + flat) * kColumns;
      FLASHTILE_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        const int col = (i * kWarpSize + lane_idx()) * 4;
        load_written(parts.columns[s][i], row + (col < kColumns ? col : 0));
      }
    }
  }

  FLASHTILE_DEVICE void add_parts(float (&acc)[kPerLane][4], const Parts& parts, int first,
                                  float base) const {
    FLASHTILE_UNROLL
    for (int s = 0; s < kAhead; ++s) {
      // A part that has seen nothing, or is not there, is passed over; NaN is neither.
      if (first + s >= params.grid.num_splits || parts.lse[s] == -infinity()) continue;
      const float weight = exp2_approx((parts.lse[s] - base) * kLog2e);
      FLASHTILE_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        FLASHTILE_UNROLL
        for (int e = 0; e < 4; ++e) acc[i][e] += weight * parts.columns[s][i][e];
      }
    }
  }

  /// Sums of all warps into the first one's. Begins with a barrier.
  FLASHTILE_DEVICE static void merge(float (&acc)[kPerLane][4]) {
    float* memory = reinterpret_cast<float*>(shared_memory());
    const int warp = warp_idx();
    sync_cta();
    FLASHTILE_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      const int col = (i * kWarpSize + lane_idx()) * 4;
      FLASHTILE_UNROLL
      for (int e = 0; e < 4; ++e) {
        if (warp > 0 && col < kColumns) {
          memory[(warp - 1) * kColumns + col + e] = acc[i][e];
        }
      }
    }
    sync_cta();
    if (warp > 0) return;
    FLASHTILE_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      const int col = (i * kWarpSize + lane_idx()) * 4;
      FLASHTILE_UNROLL
      for (int e = 0; e < 4; ++e) {
        FLASHTILE_UNROLL
        for (int other = 0; other < kWarps - 1; ++other) {
          if (col < kColumns) acc[i][e] += memory[other * kColumns + col + e];
        }
      }
    }
  }

  /// One query of a head; of several warps, the first one writes.
  FLASHTILE_DEVICE void combine_row(const Sequence& sequence, int q_idx, int head) const {
    const bool is_shared = params.grid.combine_warps > 1;
    const int64 flat = flat_row(params, sequence, q_idx, head);
    const int step = is_shared ? kWarps * kAhead : kAhead;
    int first = is_shared ? warp_idx() * kAhead : 0;
    Parts parts;
    load_parts(parts, first, flat);
    float base, sum;
    sum_weights(flat, sink_of(params, head), base, sum);
    float acc[kPerLane][4] = {};
    add_parts(acc, parts, first, base);
    FLASHTILE_NO_UNROLL
    for (first += step; first < params.grid.num_splits; first += step) {
      load_parts(parts, first, flat);
      add_parts(acc, parts, first, base);
    }
    if (is_shared) {
      merge(acc);
      if (warp_idx() > 0) return;
    }
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    char* out = query_row(params.out, sequence, q_idx, head);
    FLASHTILE_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      FLASHTILE_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int col = (i * kWarpSize + lane_idx()) * 4 + e;
        if (col < params.head_dim_v) {
          store_element<Config::kOutElement>(out + col * params.out.element_stride,
                                             acc[i][e] * factor);
        }
      }
    }
    if (params.lse.data != nullptr && lane_idx() == 0) {
      *query_scalar(params.lse, sequence, q_idx, head) =
          sum == 0.0f ? -infinity() : base + log_precise(sum);
    }
  }

  /// Rows of all heads of a sequence are shared by the CTAs that have it.
  FLASHTILE_DEVICE void run(int64 cta) const {
    const int ctas_per_sequence = params.grid.combine_ctas;
    const int rows_at_once = kWarps / params.grid.combine_warps;
    const int batch_idx = static_cast<int>(cta / ctas_per_sequence);
    const int64 first =
        cta % ctas_per_sequence * rows_at_once + (rows_at_once > 1 ? warp_idx() : 0);
    const int64 step = static_cast<int64>(ctas_per_sequence) * rows_at_once;
    wait_for_previous_grid();
    // Not before: the multiprocessors are free now for the CTAs of a next call.
    start_next_grid();
    const Sequence sequence = load_sequence(params, batch_idx);
    const int64 count = static_cast<int64>(sequence.seqlen_q) * params.num_heads;
    for (int64 row = first; row < count; row += step) {
      combine_row(sequence, static_cast<int>(row / params.num_heads),
                  static_cast<int>(row % params.num_heads));
    }
  }
};

}  // namespace flashtile::device

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::Combine<Config>::kThreads, 4)
    attention_combine(FLASHTILE_PARAMETER flashtile::device::AttentionParams params) {
  using namespace flashtile::device;
  const Combine<Config> combine{params, params.lengths.total_q * params.num_heads};
  combine.run(cta_idx());
}
