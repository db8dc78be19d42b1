// SPDX-License-Identifier: Apache-2.0
//
// dq from its sums: scaled, rounded and written. A warp reads four tiles of sums as they lie; then
// the four lanes of a row exchange their columns, so that each writes one tile's.
#pragma once

#include "cuda/device/backward/padded_rows.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

template <class Config>
struct DqRows {
  static constexpr int kColumnTiles = Config::kHeadDim / 8;
  static constexpr int kGroups = (kColumnTiles + 3) / 4;  ///< of four tiles
  using Tiles = float[4][4];

  const AttentionParams& params;
  const BackwardParams& backward;

  /// Word i of lane t and word t of lane i change places, for the four lanes of a row.
  FLASHTILE_DEVICE static void exchange(uint32 (&words)[4]) {
    FLASHTILE_UNROLL
    for (int bit = 1; bit <= 2; bit *= 2) {
      const bool is_upper = (lane_idx() & bit) != 0;
      FLASHTILE_UNROLL
      for (int i = 0; i < 4; ++i) {
        if ((i & bit) != 0) continue;
        uint32& low = words[i];
        uint32& high = words[i + bit];
        const uint32 other = shuffle_xor(is_upper ? low : high, bit);
        low = is_upper ? other : low;
        high = is_upper ? high : other;
      }
    }
  }

  /// Four tiles of columns of kRowPadding rows of a head, from query `first` on.
  FLASHTILE_DEVICE void store(const Sequence& sequence, int head, int first, int group,
                              const Tiles& sums) const {
    const RowsParam& dq = backward.dq;
    const int lane = lane_idx();
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int q_idx = first + half * 8 + lane / 4;
      const bool is_there = q_idx < sequence.seqlen_q;
      char* row = query_row(dq, sequence, is_there ? q_idx : first, head);
      if constexpr (Config::kDqVectors) {
        uint32 words[4];
        FLASHTILE_UNROLL
        for (int t = 0; t < 4; ++t) {
          words[t] = pack<Config::kElement>(sums[t][half * 2] * params.softmax_scale,
                                            sums[t][half * 2 + 1] * params.softmax_scale);
        }
        exchange(words);
        const int column = (group * 4 + lane % 4) * 8;
        if (is_there && column < params.head_dim) {
          store_vector(row + column * 2, Vector4{words[0], words[1], words[2], words[3]});
        }
      } else {
        FLASHTILE_UNROLL
        for (int t = 0; t < 4; ++t) {
          FLASHTILE_UNROLL
          for (int e = 0; e < 2; ++e) {
            const int column = (group * 4 + t) * 8 + lane % 4 * 2 + e;
            if (is_there && column < params.head_dim) {
              store_element<Config::kElement>(row + column * dq.element_stride,
                                              sums[t][half * 2 + e] * params.softmax_scale);
            }
          }
        }
      }
    }
  }

  /// kRowPadding rows at a time, `num_blocks` times from query `first` on, by kWarps warps of which
  /// this is `warp`; each asks for the sums of kAtOnce pieces before it writes them.
  template <int kWarps, int kAtOnce>
  FLASHTILE_DEVICE void convert(const Sequence& sequence, int head, int first, int num_blocks,
                                int warp) const {
    const float* tiles =
        dq_tile<Config::kHeadDim>(backward, head, padded_row(params, sequence) + first, 0);
    const int count = num_blocks * kGroups;
    FLASHTILE_NO_UNROLL
    for (int begin = warp; begin < count; begin += kWarps * kAtOnce) {
      Tiles sums[kAtOnce];
      FLASHTILE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = begin + i * kWarps;
        const int group = at % kGroups;
        FLASHTILE_UNROLL
        for (int t = 0; t < 4; ++t) {
          if (at >= count || group * 4 + t >= kColumnTiles) continue;
          const int tile = at / kGroups * kColumnTiles + group * 4 + t;
          load_dq_tile(tiles + static_cast<int64>(tile) * 128, sums[i][t]);
        }
      }
      FLASHTILE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = begin + i * kWarps;
        if (at >= count) break;
        store(sequence, head, first + at / kGroups * kRowPadding, at % kGroups, sums[i]);
      }
    }
  }
};

}  // namespace flashtile::device
