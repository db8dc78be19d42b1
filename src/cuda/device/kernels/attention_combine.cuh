// SPDX-License-Identifier: Apache-2.0
//
// attention_combine: one result from the parts that attention_fwd_portable left, one for each split
// of the keys.
//
//   lse = log(sum over splits of e^lse_s, and e^sink);  out = sum of e^(lse_s - lse) out_s
//
// partial_out (split, total_q, heads, parts of head_dim_v); partial_lse (split, total_q, heads).
// A warp takes one (query, head) after the other, its lanes the columns. Memory is the limit: each
// part is read once, in whole sectors; (4 head_dim_v + 4) num_splits bytes a row. Splits are summed
// in order, so that the result is the same in every run.
#pragma once

#include "cuda/device/copy/rows.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

template <class Config>
struct Combine {
  static constexpr int kThreads = 128;
  static constexpr int kColumns = Config::kColumns;  ///< of a row of partial_out
  static constexpr int kPerLane = (kColumns + kWarpSize - 1) / kWarpSize;

  const AttentionParams& params;
  int64 num_rows;

  FLASHTILE_DEVICE float partial_lse(int split, int64 flat) const {
    return load_global(params.grid.partial_lse + split * num_rows + flat);
  }

  /// The largest of the parts' lse and the sink.
  FLASHTILE_DEVICE float find_highest(int64 flat, float sink) const {
    float highest = sink;
    for (int split = lane_idx(); split < params.grid.num_splits; split += kWarpSize) {
      highest = larger(highest, partial_lse(split, flat));
    }
    FLASHTILE_UNROLL
    for (int lane_mask = kWarpSize / 2; lane_mask > 0; lane_mask /= 2) {
      highest = larger(highest, shuffle_xor(highest, lane_mask));
    }
    return highest;
  }

  /// One query of a head, by a warp.
  FLASHTILE_DEVICE void combine_row(const Sequence& sequence, int q_idx, int head) const {
    const int64 flat = flat_row(params, sequence, q_idx, head);
    float sink = -infinity();
    if (params.sink.data != nullptr) {
      sink = load_global(reinterpret_cast<const float*>(
          reinterpret_cast<const char*>(params.sink.data) + head * params.sink.head_stride));
    }
    const float highest = find_highest(flat, sink);
    const float base = highest == -infinity() ? 0.0f : highest;
    float acc[kPerLane] = {};
    float sum = exp2_approx((sink - base) * kLog2e);
    for (int split = 0; split < params.grid.num_splits; ++split) {
      const float lse = partial_lse(split, flat);
      // NaN is no less than anything, and stays.
      if (lse == -infinity()) continue;
      const float weight = exp2_approx((lse - base) * kLog2e);
      sum += weight;
      const float* row = params.grid.partial_out + (split * num_rows + flat) * kColumns;
      FLASHTILE_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        const int col = i * kWarpSize + lane_idx();
        if (col < params.head_dim_v) acc[i] += weight * load_global(row + col);
      }
    }
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    char* out = query_row(params.out, sequence, q_idx, head);
    FLASHTILE_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      const int col = i * kWarpSize + lane_idx();
      if (col < params.head_dim_v) {
        store_element<Config::kOutElement>(out + col * params.out.element_stride, acc[i] * factor);
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
    const Sequence sequence = load_sequence(params, static_cast<int>(cta / ctas_per_sequence));
    const int64 first = cta % ctas_per_sequence * (kThreads / kWarpSize) + warp_idx();
    const int64 step = static_cast<int64>(ctas_per_sequence) * (kThreads / kWarpSize);
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
