// SPDX-License-Identifier: Apache-2.0
//
// attention_weights: what values are multiplied by, and what dropout keeps, written out for whoever
// asked for a tensor of them. Quadratic because of that, and simple: lse is known, each lane works
// out the products of its keys one after the other.
#pragma once

#include "cuda/device/mma/codes.cuh"
#include "cuda/device/ptx/thread.cuh"
#include "cuda/device/score/dropout.cuh"
#include "cuda/device/score/score.cuh"

namespace flashtile::device {

template <class Config>
struct WeightsWriter {
  static constexpr int kThreads = 128;

  const AttentionParams& params;
  const typename Config::Expressions::Params& user;

  FLASHTILE_DEVICE static float load_key(const char* address) {
    if constexpr (Config::kKeyElement == Config::kElement) {
      return load_element<Config::kElement>(address);
    } else {
      return float_of_code<Config::kKeyElement>(
          load_global(reinterpret_cast<const unsigned char*>(address)));
    }
  }

  FLASHTILE_DEVICE float product(const char* query, const char* key) const {
    float sum = 0.0f;
    for (int d = 0; d < params.head_dim; ++d) {
      sum = fused_multiply_add(load_element<Config::kElement>(query + d * params.q.element_stride),
                               load_key(key + d * params.k.element_stride), sum);
    }
    return sum;
  }

  FLASHTILE_DEVICE bool keeps(const Sequence& sequence, int head, int q_idx, int k_idx) const {
    if constexpr (!Config::kHasDropout) return true;
    const DropoutParam& dropout = dropout_of<Config>(params.dropout);
    return variant::dropout_bits(dropout.seed, dropout.offset,
                                 static_cast<uint32>(sequence.batch_idx * params.num_heads + head),
                                 static_cast<uint32>(q_idx),
                                 static_cast<uint32>(k_idx)) >= dropout.threshold;
  }

  FLASHTILE_DEVICE static char* element(const ScoresParam& scores, int batch_idx, int head, int row,
                                        int col) {
    return scores.data + batch_idx * scores.batch_stride + head * scores.head_stride +
           row * scores.row_stride + col * scores.key_stride;
  }

  /// All columns of one row, by a warp.
  FLASHTILE_DEVICE void write_row(const Sequence& sequence, int head, int row) const {
    const WeightsParam& debug = params.debug;
    const variant::PositionMask position = find_position_mask<Config>(params, user, sequence, head);
    const ScoreRules<Config> rules{params, user, sequence, position};
    const KeyRows<Config::kPaged> keys(params.k, params.lengths, sequence, head / params.group_size,
                                       0);
    const bool is_there = row < sequence.seqlen_q;
    const char* query = is_there ? query_row(params.q, sequence, row, head) : nullptr;
    const float lse = is_there ? *query_scalar(params.lse, sequence, row, head) : 0.0f;
    const int cols = debug.weight_cols > debug.mask_cols ? debug.weight_cols : debug.mask_cols;
    for (int col = lane_idx(); col < cols; col += kWarpSize) {
      const int k_idx = col - sequence.leftpad;
      const bool is_pair = is_there && k_idx >= 0 && k_idx < sequence.seqlen_k;
      const bool is_kept = is_pair && keeps(sequence, head, row, k_idx);
      if (debug.dropout_mask.data != nullptr && row < debug.mask_rows && col < debug.mask_cols) {
        *element(debug.dropout_mask, sequence.batch_idx, head, row, col) = is_kept ? 1 : 0;
      }
      if (debug.weights.data == nullptr || row >= debug.weight_rows || col >= debug.weight_cols) {
        continue;
      }
      float weight = 0.0f;
      if (is_kept && rules.is_seen(head, row, k_idx)) {
        float x = product(query, keys.row(k_idx));
        if constexpr (Config::kKeyElement != Config::kElement) {
          x *= scale_of_key(params.k_scale, params.lengths, sequence, keys,
                            head / params.group_size, k_idx);
        }
        const float logit = rules.logit(x, head, row, k_idx);
        weight = exp_precise(logit - lse) * (Config::kHasDropout ? params.dropout.gain : 1.0f);
      }
      *reinterpret_cast<float*>(element(debug.weights, sequence.batch_idx, head, row, col)) =
          weight;
    }
  }

  FLASHTILE_DEVICE void run() const {
    const WeightsParam& debug = params.debug;
    const int rows = debug.weight_rows > debug.mask_rows ? debug.weight_rows : debug.mask_rows;
    const int64 count = static_cast<int64>(params.lengths.batch_size) * params.num_heads * rows;
    const int64 step = num_ctas() * (kThreads / kWarpSize);
    for (int64 at = cta_idx() * (kThreads / kWarpSize) + warp_idx(); at < count; at += step) {
      const int64 plane = at / rows;
      const Sequence sequence = load_sequence(params, static_cast<int>(plane / params.num_heads));
      write_row(sequence, static_cast<int>(plane % params.num_heads), static_cast<int>(at % rows));
    }
  }
};

}  // namespace flashtile::device

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::WeightsWriter<Config>::kThreads, 4)
    attention_weights(FLASHTILE_PARAMETER flashtile::device::AttentionParams params,
                      FLASHTILE_PARAMETER Config::Expressions::Params user) {
  const flashtile::device::WeightsWriter<Config> kernel{params, user};
  kernel.run();
}
