// SPDX-License-Identifier: Apache-2.0
//
// attention_bwd_prepare: delta = sum of out dout, less dlse, of each query; lse in log2 units; and
// zeros where dq is summed.
//
// A warp takes sixteen rows of a head, neighbouring warps neighbouring heads, so that they read
// memory in order. Memory is the limit: out and dout are read once, the sums written once.
#pragma once

#include "cuda/device/backward/padded_rows.cuh"
#include "cuda/device/copy/load_tile.cuh"

namespace flashtile::device {

template <class Config>
struct BackwardPrepare {
  static constexpr int kThreads = 128;
  static constexpr int kLanes = Config::kRowLanes;  ///< that share a row; a power of two
  static constexpr int kRowsAtOnce = kWarpSize / kLanes;
  static constexpr int kRounds = kRowPadding / kRowsAtOnce;
  static constexpr int kElements = 8;
  static constexpr int kChunks = Config::kHeadDimV / (kLanes * kElements);  ///< of a lane

  const AttentionParams& params;
  const BackwardParams& backward;

  /// Eight elements of a row from `first` on, zeros behind its end.
  template <Element element, bool kVectors>
  FLASHTILE_DEVICE void load(float (&value)[kElements], const char* row, int64 stride,
                             int first) const {
    if constexpr (kVectors && element != Element::kF32) {
      if (first + kElements <= params.head_dim_v) {
        const Vector4 part = load_vector(row + first * 2);
        unpack<element>(part.x, value[0], value[1]);
        unpack<element>(part.y, value[2], value[3]);
        unpack<element>(part.z, value[4], value[5]);
        unpack<element>(part.w, value[6], value[7]);
        return;
      }
    }
    FLASHTILE_UNROLL
    for (int e = 0; e < kElements; ++e) {
      value[e] =
          first + e < params.head_dim_v ? load_element<element>(row + (first + e) * stride) : 0.0f;
    }
  }

  FLASHTILE_DEVICE float dot(const Sequence& sequence, int q_idx, int head) const {
    const char* out = query_row(params.out, sequence, q_idx, head);
    const char* dout = query_row(backward.dout, sequence, q_idx, head);
    float sum = 0.0f;
    FLASHTILE_UNROLL
    for (int i = 0; i < kChunks; ++i) {
      const int first = (i * kLanes + lane_idx() % kLanes) * kElements;
      float a[kElements];
      float b[kElements];
      load<Config::kOutElement, Config::kVectors>(a, out, params.out.element_stride, first);
      load<Config::kDoutElement, Config::kVectors>(b, dout, backward.dout.element_stride, first);
      FLASHTILE_UNROLL
      for (int e = 0; e < kElements; ++e) sum = fused_multiply_add(a[e], b[e], sum);
    }
    return sum;
  }

  FLASHTILE_DEVICE void clear(int head, int64 row) const {
    float* sums = dq_tile<Config::kHeadDim>(backward, head, row, 0);
    FLASHTILE_UNROLL
    for (int i = 0; i < Config::kHeadDim / 8; ++i) {
      store_vector(sums + i * 128 + lane_idx() * 4, Vector4{0, 0, 0, 0});
    }
  }

  /// Sixteen rows of a head.
  FLASHTILE_DEVICE void prepare(const Sequence& sequence, int first, int head) const {
    const int64 begin = padded_row(params, sequence) + first;
    if constexpr (Config::kSumsDq) clear(head, begin);
    float sums[kRounds];
    FLASHTILE_UNROLL
    for (int i = 0; i < kRounds; ++i) {
      const int q_idx = first + i * kRowsAtOnce + lane_idx() / kLanes;
      sums[i] = q_idx < sequence.seqlen_q ? dot(sequence, q_idx, head) : 0.0f;
    }
    FLASHTILE_UNROLL
    for (int i = 0; i < kRounds; ++i) {
      FLASHTILE_UNROLL
      for (int mask = kLanes / 2; mask > 0; mask /= 2) sums[i] += shuffle_xor(sums[i], mask);
      const int row = i * kRowsAtOnce + lane_idx() / kLanes;
      const int q_idx = first + row;
      if (lane_idx() % kLanes != 0 || q_idx >= sequence.seqlen_q) continue;
      float delta = sums[i];
      if (backward.dlse.data != nullptr) {
        delta -= load_global(query_scalar(backward.dlse, sequence, q_idx, head));
      }
      const float lse = load_global(query_scalar(params.lse, sequence, q_idx, head));
      const int64 at = head * backward.padded_rows + begin + row;
      backward.delta[at] = delta;
      backward.lse[at] = lse == -infinity() ? infinity() : lse * kLog2e;
    }
  }

  FLASHTILE_DEVICE void run() const {
    const LengthsParam& lengths = params.lengths;
    const int num_blocks = (lengths.max_seqlen_q + kRowPadding - 1) / kRowPadding;
    const int64 count = static_cast<int64>(lengths.batch_size) * num_blocks * params.num_heads;
    const int64 step = num_ctas() * (kThreads / kWarpSize);
    for (int64 at = cta_idx() * (kThreads / kWarpSize) + warp_idx(); at < count; at += step) {
      const int64 block = at / params.num_heads;
      const Sequence sequence = load_sequence(params, static_cast<int>(block / num_blocks));
      const int first = static_cast<int>(block % num_blocks) * kRowPadding;
      if (first < sequence.seqlen_q) {
        prepare(sequence, first, static_cast<int>(at % params.num_heads));
      }
    }
  }
};

}  // namespace flashtile::device

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::BackwardPrepare<Config>::kThreads, 4)
    attention_bwd_prepare(FLASHTILE_PARAMETER flashtile::device::AttentionParams params,
                          FLASHTILE_PARAMETER flashtile::device::BackwardParams backward) {
  const flashtile::device::BackwardPrepare<Config> kernel{params, backward};
  kernel.run();
}
