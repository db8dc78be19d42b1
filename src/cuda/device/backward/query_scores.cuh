// SPDX-License-Identifier: Apache-2.0
//
// From products to gradients of logits, in accumulators whose rows are queries and whose columns
// are keys: the other direction of backward_scores.cuh.
#pragma once

#include "cuda/device/backward/backward_scores.cuh"
#include "cuda/device/backward/padded_rows.cuh"
#include "cuda/device/params/stream_shape.hpp"

namespace flashtile::device {

/// What one (query, key) pair gives; zeros where it is hidden.
struct PairGradient {
  float weight = 0.0f;      ///< before dropout
  float dweight = 0.0f;     ///< gradient of it
  float derivative = 1.0f;  ///< of the logit by the scaled product
  bool is_seen = false;
};

/// Two of a lane's rows, of a warp with 16 queries of one head.
template <class Config>
struct QueryScores {
  static constexpr int kCols = kStreamBlock;
  using Scores = float[1][kCols / 8][4];

  const ScoreRules<Config>& rules;
  int head;
  int first_query;  ///< of the warp
  float lse[2];     ///< +inf where no key is seen
  float delta[2];

  FLASHTILE_DEVICE QueryScores(const ScoreRules<Config>& score_rules, int head_idx, int warp_query)
      : rules(score_rules), head(head_idx), first_query(warp_query) {}

  FLASHTILE_DEVICE int query(int half) const { return first_query + half * 8 + lane_idx() / 4; }
  FLASHTILE_DEVICE bool is_there(int half) const { return query(half) < rules.sequence.seqlen_q; }
  FLASHTILE_DEVICE int clamped_query(int half) const {
    return is_there(half) ? query(half) : rules.sequence.seqlen_q - 1;
  }

  FLASHTILE_DEVICE void load(const BackwardParams& backward, int64 padded_row) {
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int64 at = head * backward.padded_rows + padded_row + clamped_query(half);
      lse[half] = backward.lse[at];
      delta[half] = backward.delta[at];
    }
  }

  /// The sixteen random bits of a pair, where blocks of keys begin anywhere.
  FLASHTILE_DEVICE bool keeps(int q_idx, int k_idx) const {
    const DropoutParam& dropout = rules.params.dropout;
    return variant::dropout_bits(
               dropout.seed, dropout.offset,
               static_cast<uint32>(rules.sequence.batch_idx * rules.params.num_heads + head),
               static_cast<uint32>(q_idx), static_cast<uint32>(k_idx)) >= dropout.threshold;
  }

  /// Calls `apply(half, n, e, key, gradient)` for each element of a lane, whose products are `s`
  /// and `dp`; `first_key` is column 0's. Where blocks may hide pairs, `hides` is set.
  template <class Apply>
  FLASHTILE_DEVICE void for_each_pair(const Scores& s, const Scores& dp, int first_key, bool hides,
                                      const Apply& apply) const {
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int q_idx = clamped_query(half);
      variant::KeyRange range = {0, rules.sequence.seqlen_k};
      if (hides) range = rules.position.keys(q_idx);
      if (!is_there(half)) range.end = range.begin;
      const int begin = static_cast<int>(range.begin) - first_key;
      const int end = static_cast<int>(range.end) - first_key;
      uint32 words[4];
      FLASHTILE_UNROLL
      for (int n = 0; n < kCols / 8; ++n) {
        if constexpr (Config::kHasDropout) {
          if (n % 4 == 0 && first_key % 32 == 0) {
            dropout_words(
                words, rules.params.dropout,
                static_cast<uint32>(rules.sequence.batch_idx * rules.params.num_heads + head),
                static_cast<uint32>(q_idx), static_cast<uint32>(first_key + n * 8),
                static_cast<uint32>(lane_idx() % 4));
          }
        }
        FLASHTILE_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int column = n * 8 + lane_idx() % 4 * 2 + e;
          PairGradient pair;
          pair.is_seen = column >= begin && column < end;
          if constexpr (Config::kHasBlockMap) {
            pair.is_seen =
                pair.is_seen && (!hides || rules.is_kept(head, q_idx, first_key + column));
          }
          float weight = weigh(s[0][n][half * 2 + e], half, q_idx, first_key + column, pair);
          pair.is_seen = pair.is_seen && weight != 0.0f;
          pair.weight = pair.is_seen ? weight : 0.0f;
          pair.dweight = pair.is_seen ? dp[0][n][half * 2 + e] : 0.0f;
          if constexpr (Config::kHasDropout) {
            const uint32 bits = e == 0 ? words[n % 4] & 0xffffu : words[n % 4] >> 16;
            const bool is_kept = first_key % 32 == 0 ? bits >= rules.params.dropout.threshold
                                                     : keeps(q_idx, first_key + column);
            pair.dweight = is_kept ? pair.dweight * rules.params.dropout.gain : 0.0f;
          }
          apply(half, n, e, first_key + column, pair);
        }
      }
    }
  }

  FLASHTILE_DEVICE float weigh(float product, int half, int q_idx, int k_idx,
                               PairGradient& pair) const {
    if constexpr (Config::kHasScoreOptions) {
      const float logit = rules.logit_and_derivative(product, head, q_idx, k_idx, pair.derivative);
      return exp2_approx((logit - lse[half]) * kLog2e);
    } else {
      return plain_weight<Config>(product, rules.params.softmax_scale, lse[half]);
    }
  }

  /// By a pair's weight and the gradient of it. Hidden pairs give 0 whatever delta is.
  FLASHTILE_DEVICE float dlogit(int half, const PairGradient& pair) const {
    return pair.is_seen ? pair.weight * (pair.dweight - delta[half]) : 0.0f;
  }
};

}  // namespace flashtile::device
