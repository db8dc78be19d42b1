// SPDX-License-Identifier: Apache-2.0
//
// attention_bwd_convert: dq from its sums, scaled and rounded, unless it is there already; zeros
// for packed queries that no sequence covers. A warp takes sixteen rows of a head; memory is the
// limit: (4 + element) bytes for each element.
#pragma once

#include "cuda/device/backward/padded_rows.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

template <class Config>
struct BackwardConvert {
  static constexpr int kThreads = 128;
  static constexpr int kColumnTiles = Config::kHeadDim / 8;

  const AttentionParams& params;
  const BackwardParams& backward;

  FLASHTILE_DEVICE void store(const Sequence& sequence, int q_idx, int head, int column,
                              const float (&value)[8]) const {
    if (q_idx >= sequence.seqlen_q) return;
    const RowsParam& dq = backward.dq;
    char* row = query_row(dq, sequence, q_idx, head);
    if constexpr (Config::kVectors && Config::kElement != Element::kF32) {
      if (column + 8 <= params.head_dim) {
        const auto pair = [&](int i) {
          return pack<Config::kElement>(value[2 * i] * params.softmax_scale,
                                        value[2 * i + 1] * params.softmax_scale);
        };
        store_vector(row + column * 2, Vector4{pair(0), pair(1), pair(2), pair(3)});
        return;
      }
    }
    FLASHTILE_UNROLL
    for (int e = 0; e < 8; ++e) {
      if (column + e < params.head_dim) {
        store_element<Config::kElement>(row + (column + e) * dq.element_stride,
                                        value[e] * params.softmax_scale);
      }
    }
  }

  FLASHTILE_DEVICE void convert(const Sequence& sequence, int first, int head) const {
    const float* tiles =
        dq_tile<Config::kHeadDim>(backward, head, padded_row(params, sequence) + first, 0);
    FLASHTILE_NO_UNROLL
    for (int at = lane_idx(); at < 8 * kColumnTiles; at += kWarpSize) {
      const int tile = at % kColumnTiles;
      const int group = at / kColumnTiles;
      float low[8];
      float high[8];
      load_dq_rows(tiles + tile * 128, group, low, high);
      store(sequence, first + group, head, tile * 8, low);
      store(sequence, first + group + 8, head, tile * 8, high);
    }
  }

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
      for_each_row_block(params, kThreads / kWarpSize,
                         [&](const Sequence& sequence, int first_row, int head) {
                           convert(sequence, first_row, head);
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
