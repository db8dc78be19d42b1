// SPDX-License-Identifier: Apache-2.0
//
// attention_bwd_prepare: delta = sum of out dout, less dlse, of each query; lse, in log2 units
// where scores have no options; zeros where dq is summed; and zeros for keys that no sequence has.
//
// A warp takes sixteen rows of a head, neighbouring warps neighbouring heads, so that they read
// memory in order. Memory is the limit: out and dout are read once, the sums written once.
#pragma once

#include "cuda/device/backward/padded_rows.cuh"
#include "cuda/device/copy/load_tile.cuh"
#include "cuda/device/epilogue/lanes.cuh"

namespace flashtile::device {

template <class Config>
struct BackwardPrepare {
  static constexpr int kThreads = 128;
  static constexpr int kLanes = Config::kRowLanes;  ///< that share a row; a power of two
  static constexpr int kRowsAtOnce = kWarpSize / kLanes;
  static constexpr int kElements = 8;
  static constexpr int kChunks = Config::kHeadDimV / (kLanes * kElements);  ///< of a lane
  /// Rows of a lane, and how many of them are asked for at once.
  static constexpr int kRounds = kRowPadding / kRowsAtOnce;
  static constexpr int kRoundsAtOnce = kRounds * kChunks <= 8 ? kRounds
                                       : kChunks >= 8         ? 1
                                                              : 8 / kChunks;

  const AttentionParams& params;
  const BackwardParams& backward;

  /// Eight elements of a row from `first` on, zeros behind its end.
  template <Element element, bool kVectors>
  FLASHTILE_DEVICE void load(float (&value)[kElements], const char* row, int64 stride,
                             int first) const {
    if constexpr (kVectors) {
      if (first + kElements <= params.head_dim_v) {
        if constexpr (element == Element::kF32) {
          FLASHTILE_UNROLL
          for (int e = 0; e < kElements; e += 4) {
            const Vector4 part = load_vector(row + (first + e) * 4);
            value[e] = float_from_bits(part.x);
            value[e + 1] = float_from_bits(part.y);
            value[e + 2] = float_from_bits(part.z);
            value[e + 3] = float_from_bits(part.w);
          }
        } else {
          const Vector4 part = load_vector(row + first * 2);
          unpack<element>(part.x, value[0], value[1]);
          unpack<element>(part.y, value[2], value[3]);
          unpack<element>(part.z, value[4], value[5]);
          unpack<element>(part.w, value[6], value[7]);
        }
        return;
      }
    }
    FLASHTILE_UNROLL
    for (int e = 0; e < kElements; ++e) {
      value[e] =
          first + e < params.head_dim_v ? load_element<element>(row + (first + e) * stride) : 0.0f;
    }
  }

  /// Eight elements of dout as the other kernels read them.
  FLASHTILE_DEVICE void copy_dout(const Sequence& sequence, int q_idx, int head, int first,
                                  const float (&value)[kElements]) const {
    char* row = query_row(backward.dout_copy, sequence, q_idx, head);
    FLASHTILE_UNROLL
    for (int e = 0; e < kElements; ++e) {
      if (first + e < params.head_dim_v) {
        store_element<Config::kElement>(row + (first + e) * backward.dout_copy.element_stride,
                                        value[e]);
      }
    }
  }

  /// A lane's share of out . dout; `bad` becomes NaN where dout is not finite.
  FLASHTILE_DEVICE float dot(const Sequence& sequence, int q_idx, int head, float& bad) const {
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
      for (int e = 0; e < kElements; ++e) {
        // A query without keys, whose dout may be anything, has an out of 0.
        if (a[e] != 0.0f) sum = fused_multiply_add(a[e], b[e], sum);
        bad = fused_multiply_add(b[e], 0.0f, bad);
      }
      if constexpr (Config::kCopiesDout) copy_dout(sequence, q_idx, head, first, b);
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

  FLASHTILE_DEVICE float sink_of(int head) const {
    return load_global(reinterpret_cast<const float*>(
        reinterpret_cast<const char*>(params.sink.data) + head * params.sink.head_stride));
  }

  /// What one query gives to the gradient of its head's sink.
  FLASHTILE_DEVICE float sink_part(int head, float lse, float delta) const {
    const float sink = sink_of(head);
    return sink == -infinity() ? 0.0f : -exp_precise(sink - lse) * delta;
  }

  /// Some rows of sixteen, which begin at the padded row `begin`; `first` is their first query.
  FLASHTILE_DEVICE void prepare_rounds(const Sequence& sequence, int64 begin, int first, int head,
                                       int round, float& sink_sum, bool& is_odd) const {
    float sums[kRoundsAtOnce];
    float bad[kRoundsAtOnce] = {};
    const int lane_row = round * kRowsAtOnce + lane_idx() / kLanes;
    FLASHTILE_UNROLL
    for (int i = 0; i < kRoundsAtOnce; ++i) {
      const int q_idx = first + lane_row + i * kRowsAtOnce;
      sums[i] = q_idx < sequence.seqlen_q ? dot(sequence, q_idx, head, bad[i]) : 0.0f;
    }
    FLASHTILE_UNROLL
    for (int i = 0; i < kRoundsAtOnce; ++i) {
      FLASHTILE_UNROLL
      for (int mask = kLanes / 2; mask > 0; mask /= 2) {
        sums[i] += shuffle_xor(sums[i], mask);
        bad[i] += shuffle_xor(bad[i], mask);
      }
      const int row = lane_row + i * kRowsAtOnce;
      const int q_idx = first + row;
      if (lane_idx() % kLanes != 0 || q_idx >= sequence.seqlen_q) continue;
      float delta = sums[i];
      if (backward.dlse.data != nullptr) {
        delta -= load_global(query_scalar(backward.dlse, sequence, q_idx, head));
      }
      const float lse = load_global(query_scalar(params.lse, sequence, q_idx, head));
      const int64 at = head * backward.padded_rows + begin + row;
      backward.delta[at] = delta;
      if constexpr (Config::kWantsSink) sink_sum += sink_part(head, lse, delta);
      // A query without keys has weights of 0. One whose gradient or scores are not finite spoils
      // what it sees: that its lse is NaN stands for it.
      float shift = lse * (Config::kLog2Lse ? kLog2e : 1.0f);
      if (lse == -infinity()) {
        shift = infinity();
      } else if (!is_finite(lse) || bad[i] != 0.0f) {
        shift = not_a_number();
      }
      backward.lse[at] = shift;
      is_odd = is_odd || !is_finite(shift) || !is_finite(delta);
      // A query that sees nothing but the sink may hold anything.
      if constexpr (Config::kHasSink) is_odd = is_odd || lse == sink_of(head);
    }
  }

  /// Sixteen rows of a head.
  FLASHTILE_DEVICE void prepare(const Sequence& sequence, int first, int head) const {
    const int64 begin = padded_row(params, sequence) + first;
    if constexpr (Config::kSumsDq) clear(head, begin);
    float sink_sum = 0.0f;
    bool is_odd = false;
    FLASHTILE_NO_UNROLL
    for (int round = 0; round < kRounds; round += kRoundsAtOnce) {
      prepare_rounds(sequence, begin, first, head, round, sink_sum, is_odd);
    }
    is_odd = any_lane(is_odd);
    if (lane_idx() == 0) {
      backward.odd_rows[(head * backward.padded_rows + begin) / kRowPadding] = is_odd ? 1 : 0;
    }
    if constexpr (Config::kWantsSink) {
      sink_sum = sum_of_lanes(sink_sum);
      if (lane_idx() == 0) {
        backward.sink_parts[(head * backward.padded_rows + begin) / kRowPadding] = sink_sum;
      }
    }
  }

  /// A row of zeros for each kv head, of dk and dv.
  FLASHTILE_DEVICE void clear_key(int64 line, int64 row) const {
    for (int head = 0; head < params.num_heads_kv; ++head) {
      if (backward.dk.data != nullptr) clear_row(backward.dk, line, row, head, params.head_dim);
      if (backward.dv.data != nullptr) clear_row(backward.dv, line, row, head, params.head_dim_v);
    }
  }

  FLASHTILE_DEVICE static void clear_row(const RowsParam& rows, int64 line, int64 row, int head,
                                         int num_cols) {
    char* to =
        rows.data + line * rows.batch_stride + row * rows.row_stride + head * rows.head_stride;
    for (int col = lane_idx(); col < num_cols; col += kWarpSize) {
      store_element<Config::kElement>(to + col * rows.element_stride, 0.0f);
    }
  }

  /// Keys before and behind those that are in use; of packed ones also those that no sequence
  /// covers, which count as a sequence.
  FLASHTILE_DEVICE void clear_unused_keys() const {
    const LengthsParam& lengths = params.lengths;
    const bool is_packed = lengths.cu_seqlens_k.data != nullptr;
    const int num_sequences = lengths.batch_size + (is_packed ? 1 : 0);
    const int64 stored_most = is_packed ? lengths.total_k : lengths.max_seqlen_k;
    const int64 step = num_ctas() * (kThreads / kWarpSize);
    const int64 first = cta_idx() * (kThreads / kWarpSize) + warp_idx();
    for (int b = 0; b < num_sequences; ++b) {
      int64 begin = 0;
      int64 end = stored_most;
      Sequence sequence;
      if (b < lengths.batch_size) sequence = load_sequence(params, b);
      if (is_packed) {
        begin = clamp<int64>(load_int(lengths.cu_seqlens_k, b), 0, lengths.total_k);
        if (b < lengths.batch_size) {
          end = clamp<int64>(load_int(lengths.cu_seqlens_k, b + 1), begin, lengths.total_k);
        }
      }
      const int64 used = begin + sequence.leftpad;
      for (int64 row = begin + first; row < end; row += step) {
        if (row >= used && row < used + sequence.seqlen_k) continue;
        clear_key(is_packed ? 0 : sequence.line, row);
      }
    }
  }

  FLASHTILE_DEVICE void clear_counts() const {
    const int count = params.lengths.batch_size * params.num_heads_kv;
    const int64 step = num_ctas() * kThreads;
    for (int64 at = cta_idx() * kThreads + thread_idx(); at < count; at += step) {
      backward.finished[at] = 0;
    }
  }

  FLASHTILE_DEVICE void run() const {
    if (backward.finished != nullptr) clear_counts();
    for_each_row_block(params, kThreads / kWarpSize,
                       [&](const Sequence& sequence, int first_row, int head) {
                         prepare(sequence, first_row, head);
                       });
    if constexpr (Config::kHasUnusedKeys) clear_unused_keys();
  }
};

}  // namespace flashtile::device

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::BackwardPrepare<Config>::kThreads, 4)
    attention_bwd_prepare(FLASHTILE_PARAMETER flashtile::device::AttentionParams params,
                          FLASHTILE_PARAMETER flashtile::device::BackwardParams backward) {
  flashtile::device::start_next_grid();
  const flashtile::device::BackwardPrepare<Config> kernel{params, backward};
  kernel.run();
}
