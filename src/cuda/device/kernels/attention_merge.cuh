// SPDX-License-Identifier: Apache-2.0
//
// attention_merge: one result from attention over parts of the keys.
//
//   lse = log(sum over parts of e^lse_p);  out = sum of e^(lse_p - lse) out_p
//
// A warp takes one row after the other, its lanes the columns. Parts with an lse of -inf have no
// keys and are not read. Sums go over parts in their order, so that a result is the same in every
// run.
#pragma once

#include "cuda/device/params/merge_params.hpp"
#include "cuda/device/ptx/convert.cuh"
#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

template <class Config>
struct Merge {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * kWarpSize;
  /// Columns of a lane that are summed at a time.
  static constexpr int kAtOnce = 4;

  const MergeParams& params;

  FLASHTILE_DEVICE void merge_row(int64 index) const {
    const int64 head = index % params.num_heads;
    const int64 query = index / params.num_heads % params.seqlen_q;
    const int64 batch = index / params.num_heads / params.seqlen_q;
    const auto row_of = [&](const RowsParam& rows) {
      return rows.data + batch * rows.batch_stride + query * rows.row_stride +
             head * rows.head_stride;
    };
    const auto number_of = [&](const RowScalarsParam& numbers) {
      return reinterpret_cast<char*>(numbers.data) + batch * numbers.batch_stride +
             head * numbers.head_stride + query * numbers.row_stride;
    };
    const char* lse_parts = number_of(params.lse_parts);
    const auto lse_of = [&](int part) {
      return load_global(reinterpret_cast<const float*>(lse_parts + part * params.lse_part_stride));
    };
    float highest = -infinity();
    for (int part = 0; part < params.num_parts; ++part) {
      highest = larger_or_nan(highest, lse_of(part));
    }
    float sum = 0.0f;
    for (int part = 0; part < params.num_parts; ++part) {
      const float lse = lse_of(part);
      if (lse != -infinity()) sum += exp_precise(lse - highest);
    }
    if (params.lse.data != nullptr && lane_idx() == 0) {
      *reinterpret_cast<float*>(number_of(params.lse)) =
          sum == 0.0f ? -infinity() : highest + log_precise(sum);
    }
    merge_columns(row_of(params.parts), row_of(params.out), lse_of, highest, sum);
  }

  template <class LseOf>
  FLASHTILE_DEVICE void merge_columns(const char* parts, char* out, const LseOf& lse_of,
                                      float highest, float sum) const {
    for (int first = lane_idx(); first < params.head_dim; first += kAtOnce * kWarpSize) {
      float sums[kAtOnce];
      FLASHTILE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) sums[i] = -0.0f;
      for (int part = 0; part < params.num_parts; ++part) {
        const float lse = lse_of(part);
        if (lse == -infinity()) continue;
        const float weight = exp_precise(lse - highest) / sum;
        const char* row = parts + part * params.part_stride;
        FLASHTILE_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          const int column = first + i * kWarpSize;
          const float value = load_element_if<Config::kElement>(
              column < params.head_dim, row + column * params.parts.element_stride);
          sums[i] = fused_multiply_add(weight, value, sums[i]);
        }
      }
      FLASHTILE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int column = first + i * kWarpSize;
        if (column >= params.head_dim) continue;
        store_element<Config::kOutElement>(out + column * params.out.element_stride,
                                           sum == 0.0f ? 0.0f : sums[i]);
      }
    }
  }
};

}  // namespace flashtile::device

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::Merge<Config>::kThreads, 4)
    attention_merge(FLASHTILE_PARAMETER flashtile::device::MergeParams params) {
  using namespace flashtile::device;
  const Merge<Config> merge{params};
  const int64 num_warps = num_ctas() * Merge<Config>::kWarps;
  for (int64 row = cta_idx() * Merge<Config>::kWarps + warp_idx(); row < params.num_rows;
       row += num_warps) {
    merge.merge_row(row);
  }
}
