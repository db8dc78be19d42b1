// SPDX-License-Identifier: Apache-2.0
//
// From q . k to logits: scale -> softcap -> user score -> + bias, ALiBi -> masks. One definition
// for the forward, the backward and the debug kernels.
#pragma once

#include "cuda/device/copy/rows.cuh"
#include "cuda/device/schedule/key_blocks.cuh"
#include "cuda/device/score/expression.cuh"

namespace flashtile::device {

/// The variables of a (query, key) pair in a user's expressions.
FLASHTILE_DEVICE Pair make_pair(const AttentionParams& params, const Sequence& sequence, int head,
                                int q_idx, int k_idx) {
  return {sequence.batch_idx,
          head,
          head / params.group_size,
          q_idx,
          k_idx,
          sequence.seqlen_q,
          sequence.seqlen_k,
          sequence.query_offset,
          sequence.leftpad};
}

/// All masks by position of a sequence and head: those of options, and the bands of a user's mask.
template <class Config>
FLASHTILE_DEVICE variant::PositionMask find_position_mask(
    const AttentionParams& params, const typename Config::Expressions::Params& user,
    const Sequence& sequence, int head) {
  using Expressions = typename Config::Expressions;
  constexpr int64 kUnbounded = variant::PositionMask::kUnbounded;
  variant::PositionMask position = position_mask(params.position, sequence);
  const Pair place = make_pair(params, sequence, head, 0, 0);
  if constexpr (Expressions::kHasLower) {
    const int64 lower = Expressions::lower(user, place);
    if (lower > position.lower) position.lower = clamp<int64>(lower, -kUnbounded, kUnbounded);
  }
  if constexpr (Expressions::kHasUpper) {
    const int64 upper = Expressions::upper(user, place);
    if (upper < position.upper) position.upper = clamp<int64>(upper, -kUnbounded, kUnbounded);
  }
  return position;
}

/// The masks and scores of one tile's (sequence, head); `Config` says which options there are, and
/// has the user's expressions.
template <class Config>
struct ScoreRules {
  using Expressions = typename Config::Expressions;

  const AttentionParams& params;
  const typename Expressions::Params& user;
  const Sequence& sequence;
  const variant::PositionMask& position;

  FLASHTILE_DEVICE Pair pair(int head, int q_idx, int k_idx) const {
    return make_pair(params, sequence, head, q_idx, k_idx);
  }

  /// Of a float32 result to its last bits, or of 16-bit ones.
  FLASHTILE_DEVICE static float squash(float x) {
    if constexpr (Config::kElement == Element::kF32) {
      return tanh_precise(x);
    } else {
      // Two special functions, absolute error 2e-7.
      return 1.0f - 2.0f * reciprocal_approx(1.0f + exp2_approx(2.0f * kLog2e * x));
    }
  }

  FLASHTILE_DEVICE float bias_at(int head, int q_idx, int k_idx) const {
    const ScoresParam& bias = params.bias;
    if (k_idx < 0 || k_idx >= sequence.seqlen_k) return 0.0f;
    return load_element<Config::kBias>(bias.data + sequence.batch_idx * bias.batch_stride +
                                       head * bias.head_stride + q_idx * bias.row_stride +
                                       (k_idx + sequence.leftpad) * bias.key_stride);
  }

  FLASHTILE_DEVICE float slope(int head) const {
    const HeadScalarsParam& slopes = params.alibi_slopes;
    return load_global(reinterpret_cast<const float*>(reinterpret_cast<const char*>(slopes.data) +
                                                      sequence.batch_idx * slopes.batch_stride +
                                                      head * slopes.head_stride));
  }

  /// The logit of a pair, before masks; `product` is q . k.
  FLASHTILE_DEVICE float logit(float product, int head, int q_idx, int k_idx) const {
    float derivative;
    float x = user_input(product, derivative);
    if constexpr (Expressions::kHasScore) x = Expressions::score(user, pair(head, q_idx, k_idx), x);
    return add_biases(x, head, q_idx, k_idx);
  }

  /// What a user's score gets: the scaled product, capped; and its derivative by the former.
  FLASHTILE_DEVICE float user_input(float product, float& derivative) const {
    const float x = product * params.softmax_scale;
    derivative = 1.0f;
    if constexpr (!Config::kHasSoftcap) return x;
    const float squashed = squash(x * params.inverse_softcap);
    derivative = fused_multiply_add(-squashed, squashed, 1.0f);
    return params.softcap * squashed;
  }

  FLASHTILE_DEVICE float add_biases(float x, int head, int q_idx, int k_idx) const {
    if constexpr (Config::kBias != Element::kNone) x += bias_at(head, q_idx, k_idx);
    if constexpr (Config::kHasAlibi) {
      const float distance = static_cast<float>(q_idx + sequence.query_offset - k_idx);
      x = fused_multiply_add(-slope(head), absolute(distance), x);
    }
    return x;
  }

  /// The same, and its derivative by the scaled product.
  FLASHTILE_DEVICE float logit_and_derivative(float product, int head, int q_idx, int k_idx,
                                              float& derivative) const {
    float x = user_input(product, derivative);
    if constexpr (Expressions::kHasScore) {
      const Pair place = pair(head, q_idx, k_idx);
      derivative *= Expressions::score_derivative(user, place, x);
      x = Expressions::score(user, place, x);
    }
    return add_biases(x, head, q_idx, k_idx);
  }

  /// Whether a listed block holds the pair.
  FLASHTILE_DEVICE bool is_listed(int head, int q_idx, int k_idx) const {
    const BlocksParam& blocks = params.blocks;
    const int64 b = blocks.list_batches == 1 ? 0 : sequence.batch_idx;
    const int64 h = blocks.list_heads == 1 ? 0 : head;
    const int row = static_cast<int>(q_idx / blocks.block_rows);
    const int col = static_cast<int>(k_idx / blocks.block_cols);
    if (row >= blocks.list_rows || col >= blocks.list_cols) return false;
    const int64 line = (b * blocks.list_heads + h) * blocks.list_rows + row;
    return (load_global(blocks.listed + line * blocks.list_words + col / 32) >> (col % 32)) & 1u;
  }

  /// What masks besides those by position say of a pair that is there.
  FLASHTILE_DEVICE bool is_kept(int head, int q_idx, int k_idx) const {
    bool kept = true;
    if constexpr (Config::kHasBlockList) kept = is_listed(head, q_idx, k_idx);
    if constexpr (Expressions::kHasMask) {
      kept = kept && Expressions::mask(user, pair(head, q_idx, k_idx));
    }
    return kept;
  }

  /// Everything that hides a key from a query, a bias of -inf included.
  FLASHTILE_DEVICE bool is_seen(int head, int q_idx, int k_idx) const {
    const variant::KeyRange range = position.keys(q_idx);
    if (k_idx < range.begin || k_idx >= range.end || !is_kept(head, q_idx, k_idx)) return false;
    if constexpr (Config::kBias != Element::kNone) {
      return bias_at(head, q_idx, k_idx) != -infinity();
    }
    return true;
  }
};

/// Applies `apply(m, half, row)` to each row that a lane holds of a warp's kTilesM x 16 rows.
template <int kTilesM, class Apply>
FLASHTILE_DEVICE void for_each_row(int warp_row, const Apply& apply) {
  FLASHTILE_UNROLL
  for (int m = 0; m < kTilesM; ++m) {
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half)
      apply(m, half, warp_row + m * 16 + half * 8 + lane_idx() / 4);
  }
}

/// Turns products into logits, in place; `first_key` is the key of the accumulator's column 0.
template <class Config, int kTilesM, int kN, class Rows>
FLASHTILE_DEVICE void apply_scores(float (&acc)[kTilesM][kN / 8][4],
                                   const ScoreRules<Config>& rules, const Rows& rows, int warp_row,
                                   int first_key) {
  const int lane_key = first_key + lane_idx() % 4 * 2;
  for_each_row<kTilesM>(warp_row, [&](int m, int half, int row) {
    const int q_idx = rows.q_idx(row);
    const int head = rows.head_of(row);
    FLASHTILE_UNROLL
    for (int n = 0; n < kN / 8; ++n) {
      FLASHTILE_UNROLL
      for (int e = 0; e < 2; ++e) {
        float& x = acc[m][n][half * 2 + e];
        x = rules.logit(x, head, q_idx, lane_key + n * 8 + e);
      }
    }
  });
}

/// The keys that each row of a lane sees by position, relative to a key block's first one.
template <class Config, int kTilesM>
struct RowRanges {
  int begin[kTilesM][2];
  int end[kTilesM][2];

  template <class Rows>
  FLASHTILE_DEVICE RowRanges(const variant::PositionMask& position, const Rows& rows, int warp_row,
                             int first_key) {
    for_each_row<kTilesM>(warp_row, [&](int m, int half, int row) {
      const variant::KeyRange range = position.keys(rows.q_idx(row));
      begin[m][half] = static_cast<int>(range.begin) - first_key;
      end[m][half] = static_cast<int>(range.end) - first_key;
    });
  }
};

/// Sets what is hidden to -inf; the accumulator's column 0 is key first_key + first_column.
template <class Config, int kTilesM, int kN, class Rows>
FLASHTILE_DEVICE void apply_masks(float (&acc)[kTilesM][kN / 8][4], const ScoreRules<Config>& rules,
                                  const Rows& rows, const RowRanges<Config, kTilesM>& ranges,
                                  int warp_row, int first_key, int first_column) {
  const int lane_column = first_column + lane_idx() % 4 * 2;
  for_each_row<kTilesM>(warp_row, [&](int m, int half, int row) {
    const int begin = ranges.begin[m][half] - lane_column;
    const int end = ranges.end[m][half] - lane_column;
    FLASHTILE_UNROLL
    for (int n = 0; n < kN / 8; ++n) {
      FLASHTILE_UNROLL
      for (int e = 0; e < 2; ++e) {
        bool is_seen = n * 8 + e < end;
        if constexpr (Config::kHasLowerBound) is_seen = is_seen && n * 8 + e >= begin;
        if constexpr (Config::kHasBlockList || Config::Expressions::kHasMask) {
          is_seen = is_seen && rules.is_kept(rows.head_of(row), rows.q_idx(row),
                                             first_key + lane_column + n * 8 + e);
        }
        if (!is_seen) acc[m][n][half * 2 + e] = -infinity();
      }
    }
  });
}

}  // namespace flashtile::device
