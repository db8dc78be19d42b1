// SPDX-License-Identifier: Apache-2.0
//
// attention_bwd_reduce: gradients of sinks and slopes from their parts, in double and in a fixed
// order. A warp takes one number; its lanes share the parts.
#pragma once

#include "cuda/device/epilogue/lanes.cuh"
#include "cuda/device/params/backward_params.hpp"
#include "cuda/device/params/backward_shape.hpp"
#include "cuda/device/ptx/memory.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

constexpr int kReduceThreads = 128;

FLASHTILE_DEVICE double sum_parts(const float* parts, int64 count) {
  double sum = 0;
  for (int64 i = lane_idx(); i < count; i += kWarpSize) sum += load_global(parts + i);
  return sum_of_lanes(sum);
}

FLASHTILE_DEVICE void write_sum(const HeadScalarsParam& scalars, int batch_idx, int head,
                                double sum) {
  if (lane_idx() != 0) return;
  *reinterpret_cast<float*>(reinterpret_cast<char*>(scalars.data) +
                            batch_idx * scalars.batch_stride + head * scalars.head_stride) =
      static_cast<float>(sum);
}

FLASHTILE_DEVICE void reduce_slope(const AttentionParams& params, const BackwardParams& backward,
                                   int head) {
  // Slopes have a batch dimension, or the batch is summed.
  const int64 count = backward.slope_parts_per_head;
  double total = 0;
  for (int b = 0; b < params.lengths.batch_size; ++b) {
    const int64 row = static_cast<int64>(b) * params.num_heads + head;
    const double sum = sum_parts(backward.slope_parts + row * count, count);
    total += sum;
    if (backward.has_slopes_by_batch) write_sum(backward.dalibi_slopes, b, head, sum);
  }
  if (!backward.has_slopes_by_batch) write_sum(backward.dalibi_slopes, 0, head, total);
}

}  // namespace flashtile::device

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::kReduceThreads, 4)
    attention_bwd_reduce(FLASHTILE_PARAMETER flashtile::device::AttentionParams params,
                         FLASHTILE_PARAMETER flashtile::device::BackwardParams backward) {
  using namespace flashtile::device;
  const int64 step = num_ctas() * (kReduceThreads / kWarpSize);
  const int64 first = cta_idx() * (kReduceThreads / kWarpSize) + warp_idx();
  for (int64 at = first; at < params.num_heads; at += step) {
    const int head = static_cast<int>(at);
    if (backward.dsink.data != nullptr) {
      const int64 count = backward.padded_rows / kRowPadding;
      write_sum(backward.dsink, 0, head, sum_parts(backward.sink_parts + head * count, count));
    }
    if (backward.dalibi_slopes.data != nullptr) reduce_slope(params, backward, head);
  }
}
