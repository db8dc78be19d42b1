// SPDX-License-Identifier: Apache-2.0
//
// From products to gradients of logits, in accumulators whose rows are queries and whose columns
// are keys: the other direction of backward_scores.cuh.
#pragma once

#include "cuda/device/backward/backward_scores.cuh"
#include "cuda/device/backward/padded_rows.cuh"
#include "cuda/device/mma/operands.cuh"
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

  ScoreRules<Config> rules;  ///< not a reference: to itself it would take the work to local memory
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
    const DropoutParam& dropout = dropout_of<Config>(rules.params.dropout);
    return variant::dropout_bits(
               dropout.seed, dropout.offset,
               static_cast<uint32>(rules.sequence.batch_idx * rules.params.num_heads + head),
               static_cast<uint32>(q_idx), static_cast<uint32>(k_idx)) >= dropout.threshold;
  }

  /// A bit for each of a lane's elements of one row, at 2 n + e: set where dropout keeps it.
  FLASHTILE_DEVICE uint32 kept_weights(int q_idx, int first_key) const {
    uint32 kept = 0;
    if (first_key % 32 != 0) {
      FLASHTILE_NO_UNROLL
      for (int i = 0; i < kCols / 4; ++i) {
        const int key = first_key + i / 2 * 8 + lane_idx() % 4 * 2 + i % 2;
        kept |= static_cast<uint32>(keeps(q_idx, key)) << i;
      }
      return kept;
    }
    const DropoutParam& dropout = dropout_of<Config>(rules.params.dropout);
    const uint32 batch_head =
        static_cast<uint32>(rules.sequence.batch_idx * rules.params.num_heads + head);
    FLASHTILE_UNROLL
    for (int first = 0; first < kCols / 8; first += 4) {
      uint32 words[4];
      dropout_words(words, dropout, batch_head, static_cast<uint32>(q_idx),
                    static_cast<uint32>(first_key + first * 8),
                    static_cast<uint32>(lane_idx() % 4));
      FLASHTILE_UNROLL
      for (int i = 0; i < 8; ++i) {
        const uint32 bits = i % 2 == 0 ? words[i / 2] & 0xffffu : words[i / 2] >> 16;
        kept |= static_cast<uint32>(bits >= dropout.threshold) << (first * 2 + i);
      }
    }
    return kept;
  }

  /// One block of a row's keys: what its position sees of them, and what dropout keeps.
  struct Row {
    int q_idx;
    int begin, end;  ///< columns of the block
    uint32 kept;
  };
  FLASHTILE_DEVICE Row row_of(int half, int first_key, bool hides) const {
    Row row = {clamped_query(half), 0, 0, 0};
    variant::KeyRange range = {0, rules.sequence.seqlen_k};
    if (hides) range = rules.position.keys(row.q_idx);
    if (!is_there(half)) range.end = range.begin;
    row.begin = static_cast<int>(range.begin) - first_key;
    row.end = static_cast<int>(range.end) - first_key;
    if constexpr (Config::kHasDropout) row.kept = kept_weights(row.q_idx, first_key);
    return row;
  }

  /// Text of the user's takes long to compile: it is there for one tile of columns, and tiles take
  /// turns in its registers.
  static constexpr bool kTakesTurns = Config::kHasBlockMap || Config::Expressions::kHasScore;
  static constexpr int kTilesAtOnce = kTakesTurns ? 1 : kCols / 8;

  /// Replaces each element of dp by `apply(half, key, product, gradient)`; `s` and `dp` are the
  /// products, and `first_key` is column 0's. `hides`: masks may hide pairs; `asks`: those by more
  /// than position may.
  template <class Apply>
  FLASHTILE_DEVICE void for_each_pair(Scores& s, Scores& dp, int first_key, bool hides, bool asks,
                                      const Apply& apply) const {
    const Row rows[2] = {row_of(0, first_key, hides), row_of(1, first_key, hides)};
    FLASHTILE_NO_UNROLL
    for (int first = 0; first < kCols / 8; first += kTilesAtOnce) {
      FLASHTILE_UNROLL
      for (int half = 0; half < 2; ++half) {
        FLASHTILE_UNROLL
        for (int i = 0; i < 2 * kTilesAtOnce; ++i) {
          const int at = 2 * first + i;
          const int column = at / 2 * 8 + lane_idx() % 4 * 2 + i % 2;
          const float product = s[0][i / 2][half * 2 + i % 2];
          float& value = dp[0][i / 2][half * 2 + i % 2];
          const PairGradient pair =
              gradient_of(product, value, half, rows[half], at, column, first_key + column, asks);
          value = apply(half, first_key + column, product, pair);
        }
      }
      if constexpr (kTakesTurns) {
        turn_tiles<1>(s);
        turn_tiles<1>(dp);
      }
    }
  }

  /// Of the element `at` of a row, with its products.
  FLASHTILE_DEVICE PairGradient gradient_of(float product, float dproduct, int half, const Row& row,
                                            int at, int column, int k_idx, bool asks) const {
    PairGradient pair;
    pair.is_seen = column >= row.begin && column < row.end;
    if constexpr (Config::kHasBlockMap) {
      pair.is_seen = pair.is_seen && (!asks || rules.is_kept(head, row.q_idx, k_idx));
    }
    const float weight = weigh(product, half, row.q_idx, k_idx, pair);
    pair.is_seen = pair.is_seen && weight != 0.0f;
    pair.weight = pair.is_seen ? weight : 0.0f;
    pair.dweight = pair.is_seen ? dproduct : 0.0f;
    if constexpr (Config::kHasDropout) {
      const bool is_kept = ((row.kept >> at) & 1u) != 0;
      pair.dweight = is_kept ? pair.dweight * rules.params.dropout.gain : 0.0f;
    }
    return pair;
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
