// SPDX-License-Identifier: Apache-2.0
//
// The forward's way from a warp's products to logits, rows first: what belongs to a row is worked
// out once, and keys differ from the lane's first one by constants, so that equal addresses (all
// pairs of one distance, a column for several rows) are found equal by the compiler.
#pragma once

#include "cuda/device/ptx/thread.cuh"
#include "cuda/device/score/score.cuh"

namespace flashtile::device {

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

/// Turns products into natural logits, in place; `first_key` is the key of the accumulator's column
/// 0. kIsInside: all rows and keys are there, and so is what the user's score reads for them.
template <class Config, bool kIsInside, int kTilesM, int kN, class Rows>
FLASHTILE_DEVICE void apply_scores(float (&acc)[kTilesM][kN / 8][4],
                                   const ScoreRules<Config>& rules, const Rows& rows, int warp_row,
                                   int first_key) {
  using Expressions = typename Config::Expressions;
  const int lane_key = first_key + lane_idx() % 4 * 2;
  const int lane_query = rows.first + warp_row + lane_idx() / 4;
  for_each_row<kTilesM>(warp_row, [&](int m, int half, int row) {
    const int q_idx = rows.q_idx(row);
    const int head = rows.head_of(row);
    const Sequence& sequence = rules.sequence;
    Pair pair = rules.pair(head, kIsInside ? lane_query : q_idx, lane_key);
    if constexpr (kIsInside) pair.q_step = m * 16 + half * 8;
    const char* bias = nullptr;
    if constexpr (Config::kBias != Element::kNone) bias = rules.bias_address(head, q_idx, lane_key);
    float slope = 0.0f;
    float distance = 0.0f;  // to the lane's first key
    if constexpr (Config::kHasAlibi) {
      slope = rules.slope(head);
      distance = static_cast<float>(q_idx + sequence.query_offset - lane_key);
    }
    FLASHTILE_UNROLL
    for (int n = 0; n < kN / 8; ++n) {
      FLASHTILE_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int column = n * 8 + e;
        float derivative;
        float x = rules.user_input(acc[m][n][half * 2 + e], derivative);
        if constexpr (Expressions::kHasScore) {
          Pair place = pair;
          place.k_step = column;
          x = Expressions::template score<kIsInside>(rules.user, place, x);
        }
        if constexpr (Config::kBias != Element::kNone) {
          const bool is_there =
              static_cast<uint32>(lane_key + column) < static_cast<uint32>(sequence.seqlen_k);
          x += load_element_if<Config::kBias>(is_there,
                                              bias + column * rules.params.bias.key_stride);
        }
        if constexpr (Config::kHasAlibi) {
          x = fused_multiply_add(-slope, absolute(distance - static_cast<float>(column)), x);
        }
        acc[m][n][half * 2 + e] = x;
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

/// Sets what positions hide to -inf; `first_column` is the block's column that the accumulator's
/// column 0 is.
template <class Config, int kTilesM, int kN>
FLASHTILE_DEVICE void mask_positions(float (&acc)[kTilesM][kN / 8][4],
                                     const RowRanges<Config, kTilesM>& ranges, int first_column) {
  const int lane_column = first_column + lane_idx() % 4 * 2;
  for_each_row<kTilesM>(0, [&](int m, int half, int) {
    const int begin = ranges.begin[m][half] - lane_column;
    const int end = ranges.end[m][half] - lane_column;
    FLASHTILE_UNROLL
    for (int n = 0; n < kN / 8; ++n) {
      FLASHTILE_UNROLL
      for (int e = 0; e < 2; ++e) {
        bool is_seen = n * 8 + e < end;
        if constexpr (Config::kHasLowerBound) is_seen = is_seen && n * 8 + e >= begin;
        if (!is_seen) acc[m][n][half * 2 + e] = -infinity();
      }
    }
  });
}

/// Sets what other masks hide to -inf; `first_key` is the key of the accumulator's column 0.
template <class Config, int kTilesM, int kN, class Rows>
FLASHTILE_DEVICE void mask_pairs(float (&acc)[kTilesM][kN / 8][4], const ScoreRules<Config>& rules,
                                 const Rows& rows, int warp_row, int first_key) {
  const int lane_key = first_key + lane_idx() % 4 * 2;
  for_each_row<kTilesM>(warp_row, [&](int m, int half, int row) {
    const int q_idx = rows.q_idx(row);
    const int head = rows.head_of(row);
    FLASHTILE_UNROLL
    for (int n = 0; n < kN / 8; ++n) {
      FLASHTILE_UNROLL
      for (int e = 0; e < 2; ++e) {
        if (!rules.is_kept(head, q_idx, lane_key + n * 8 + e)) {
          acc[m][n][half * 2 + e] = -infinity();
        }
      }
    }
  });
}

}  // namespace flashtile::device
