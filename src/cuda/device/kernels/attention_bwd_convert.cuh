// SPDX-License-Identifier: Apache-2.0
//
// attention_bwd_convert: dq from its sums, scaled and rounded, unless it is there already; zeros
// for packed queries that no sequence covers. A warp takes sixteen rows of a head; memory is the
// limit: (4 + element) bytes for each element.
#pragma once

#include "cuda/device/backward/dq_rows.cuh"

namespace flashtile::device {

template <class Config>
struct BackwardConvert {
  static constexpr int kThreads = 128;

  const AttentionParams& params;
  const BackwardParams& backward;

  FLASHTILE_DEVICE void clear_uncovered_rows() const {
    const LengthsParam& lengths = params.lengths;
    const int64 covered =
        clamp<int64>(load_int(lengths.cu_seqlens_q, lengths.batch_size), 0, lengths.total_q);
    const int64 count = (lengths.total_q - covered) * params.num_heads;
    const int64 step = num_ctas() * (kThreads / kWarpSize);
    Sequence all;
    for (int64 at = cta_idx() * (kThreads / kWarpSize) + warp_idx(); at < count; at += step) {
      all.q_begin = covered + at / params.num_heads;
      char* row = query_row(backward.dq, all, 0, static_cast<int>(at % params.num_heads));
      for (int col = lane_idx(); col < params.head_dim; col += kWarpSize) {
        store_element<Config::kElement>(row + col * backward.dq.element_stride, 0.0f);
      }
    }
  }

  FLASHTILE_DEVICE void run() const {
    if constexpr (Config::kSumsDq) {
      const DqRows<Config> rows{params, backward};
      for_each_row_block(params, kThreads / kWarpSize,
                         [&](const Sequence& sequence, int first_row, int head) {
                           rows.template convert<1, 2>(sequence, head, first_row,
                                                       /*num_blocks=*/1, /*warp=*/0);
                         });
    }
    if (params.lengths.cu_seqlens_q.data != nullptr) clear_uncovered_rows();
  }
};

}  // namespace flashtile::device

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::BackwardConvert<Config>::kThreads, 4)
    attention_bwd_convert(FLASHTILE_PARAMETER flashtile::device::AttentionParams params,
                          FLASHTILE_PARAMETER flashtile::device::BackwardParams backward) {
  flashtile::device::wait_for_previous_grid();
  const flashtile::device::BackwardConvert<Config> kernel{params, backward};
  kernel.run();
}
