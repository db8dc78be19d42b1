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

/// What a kernel makes of products before softmax.
template <class Config>
struct LogitKind {
  /// Logits are natural and made one by one: float32, or what is known of each pair alone.
  static constexpr bool kIsGeneral =
      Config::kHasScoreOptions &&
      (Config::kElement == Element::kF32 || Config::kBias != Element::kNone ||
       Config::Expressions::kHasScore || !(Config::kHasSoftcap || Config::kHasAlibi));
  /// Otherwise: capped ones are tanh(...), and the cap a part of the scale; ALiBi adds a straight
  /// line of columns to the exponents of a row, as long as all keys lie on one side of the queries.
  static constexpr bool kIsCapped = Config::kHasSoftcap && !kIsGeneral;
  static constexpr bool kIsTilted = Config::kHasAlibi && !kIsGeneral;
  /// The user's score is the product and something that does not depend on it, and nothing else is
  /// done to it.
  static constexpr bool kAddsTerms = Config::Expressions::kHasScore &&
                                     Config::Expressions::kAddsToScore && !Config::kHasSoftcap &&
                                     !Config::kHasAlibi && Config::kBias == Element::kNone;
};

/// Turns products into natural logits, in place; `first_key` is the key of the accumulator's column
/// 0. kIsInside: all rows and keys are there, and so is what the user's score reads for them.
/// kBiasInPairs: two neighbours of a bias lie side by side, aligned to both. kTermsOnly: what is
/// added to scores, of any products.
template <class Config, bool kIsInside, int kTilesM, int kN, bool kBiasInPairs = false,
          bool kTermsOnly = false, class Rows>
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
      float pair_of_bias[2];
      if constexpr (kBiasInPairs && kIsInside) {
        load_element_pair<Config::kBias>(
            bias + n * 8 * static_cast<int>(element_bytes(Config::kBias)), pair_of_bias);
      }
      FLASHTILE_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int column = n * 8 + e;
        // Minus zero, to which the compiler adds nothing.
        float x = -0.0f;
        if constexpr (!kTermsOnly) {
          float derivative;
          x = rules.user_input(acc[m][n][half * 2 + e], derivative);
        }
        if constexpr (Expressions::kHasScore) {
          Pair place = pair;
          place.k_step = column;
          x = Expressions::template score<kIsInside>(rules.user, place, x);
        }
        if constexpr (kBiasInPairs && kIsInside) {
          x += pair_of_bias[e];
        } else if constexpr (Config::kBias != Element::kNone) {
          const bool is_there =
              static_cast<uint32>(lane_key + column) < static_cast<uint32>(sequence.seqlen_k);
          const int64 stride =
              kBiasInPairs ? element_bytes(Config::kBias) : rules.params.bias.key_stride;
          x += load_element_if<Config::kBias>(is_there, bias + column * stride);
        }
        if constexpr (Config::kHasAlibi) {
          x = fused_multiply_add(-slope, absolute(distance - static_cast<float>(column)), x);
        }
        acc[m][n][half * 2 + e] = x;
      }
    }
  });
}

/// Products with LogitKind::kAddsTerms become exponents, that is logits less `reference` in log2
/// units. One operation for each, and one for each term that several pairs share.
template <class Config, int kTilesM, int kN, class Rows>
FLASHTILE_DEVICE void add_terms(float (&acc)[kTilesM][kN / 8][4], const ScoreRules<Config>& rules,
                                const Rows& rows, int warp_row, int first_key, float reference) {
  const float factor = rules.params.softmax_scale * kLog2e;
  const int lane_key = first_key + lane_idx() % 4 * 2;
  const int lane_query = rows.first + warp_row + lane_idx() / 4;
  FLASHTILE_UNROLL
  for (int i = 0; i < kN / 4; ++i) {
    for_each_row<kTilesM>(warp_row, [&](int m, int half, int row) {
      Pair place = rules.pair(rows.head_of(row), lane_query, lane_key);
      place.q_step = m * 16 + half * 8;
      place.k_step = i / 2 * 8 + i % 2;
      const float term = Config::Expressions::template score<true>(rules.user, place, -0.0f);
      float& x = acc[m][i / 2][half * 2 + i % 2];
      x = fused_multiply_add(x, factor, fused_multiply_add(term, kLog2e, -reference * kLog2e));
    });
  }
}

/// Whether something holds for all pairs of these: at the corners, and it is linear between them.
/// By all lanes.
template <class Config, class Holds>
FLASHTILE_DEVICE bool holds_at_corners(const ScoreRules<Config>& rules, int head, int first_q_idx,
                                       int last_q_idx, int first_key, int last_key,
                                       const Holds& holds) {
  const int lane = lane_idx();
  return all_lanes(holds(rules.pair(head, (lane & 1) != 0 ? last_q_idx : first_q_idx,
                                    (lane & 2) != 0 ? last_key : first_key)));
}

/// Whether the user's score reads nothing outside of its tensors for any pair of these.
template <class Config>
FLASHTILE_DEVICE bool score_reads_inside(const ScoreRules<Config>& rules, int head, int first_q_idx,
                                         int last_q_idx, int first_key, int last_key) {
  return holds_at_corners(
      rules, head, first_q_idx, last_q_idx, first_key, last_key,
      [&](const Pair& corner) { return Config::Expressions::score_is_inside(rules.user, corner); });
}

template <class Config, bool kIsSmall, int kTilesM, int kN>
FLASHTILE_DEVICE void squash_all(float (&acc)[kTilesM][kN / 8][4]) {
  FLASHTILE_UNROLL
  for (int m = 0; m < kTilesM; ++m) {
    FLASHTILE_UNROLL
    for (int n = 0; n < kN / 8; ++n) {
      FLASHTILE_UNROLL
      for (int r = 0; r < 4; ++r) {
        float& x = acc[m][n][r];
        x = kIsSmall ? tanh_of_small(x) : ScoreRules<Config>::squash(x);
      }
    }
  }
}

/// Products become tanh of what they are of the cap. Where all are below most of it, which is the
/// rule, a polynomial does that: special functions are what kernels wait for.
template <class Config, int kTilesM, int kN>
FLASHTILE_DEVICE void cap_scores(float (&acc)[kTilesM][kN / 8][4], const AttentionParams& params) {
  const float factor = params.softmax_scale * params.inverse_softcap;
  float largest[2] = {};
  FLASHTILE_UNROLL
  for (int m = 0; m < kTilesM; ++m) {
    FLASHTILE_UNROLL
    for (int n = 0; n < kN / 8; ++n) {
      FLASHTILE_UNROLL
      for (int r = 0; r < 4; ++r) {
        acc[m][n][r] *= factor;
        largest[r % 2] = larger(largest[r % 2], absolute(acc[m][n][r]));
      }
    }
  }
  if (all_lanes(larger(largest[0], largest[1]) <= kSmallTanh)) {
    squash_all<Config, true, kTilesM, kN>(acc);
  } else {
    squash_all<Config, false, kTilesM, kN>(acc);
  }
}

/// A row with ALiBi: its slope, negative and in log2 units, and how far its query lies behind the
/// lane's first key.
struct TiltedRow {
  float slope, distance;
};

/// What a column adds in log2 units: slope x column + shift.
struct TiltedLine {
  float slope, shift;
};

/// Products (or capped ones), multiplied by `factor`, become logits in log2 units with ALiBi.
template <int kTilesM, int kN, class RowOf>
FLASHTILE_DEVICE void level_scores(float (&acc)[kTilesM][kN / 8][4], float factor,
                                   const RowOf& row_of) {
  FLASHTILE_UNROLL
  for (int m = 0; m < kTilesM; ++m) {
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const TiltedRow row = row_of(m, half);
      FLASHTILE_UNROLL
      for (int n = 0; n < kN / 8; ++n) {
        FLASHTILE_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& x = acc[m][n][half * 2 + e];
          const float tilt = row.slope * absolute(row.distance - static_cast<float>(n * 8 + e));
          x = fused_multiply_add(x, factor, tilt);
        }
      }
    }
  }
}

/// The keys that each row of a lane sees by position, relative to a key block's first one. Ends
/// outside of the block may be any numbers out there.
template <class Config, int kTilesM>
struct RowRanges {
  int begin[kTilesM][2];
  int end[kTilesM][2];

  template <class Rows>
  FLASHTILE_DEVICE RowRanges(const variant::PositionMask& position, const Rows& rows, int warp_row,
                             int first_key) {
    const int first_row = rows.q_idx(0);
    const auto beside = [&](int64 bound) {
      constexpr int64 kFar = 1 << 24;
      return static_cast<int>(clamp<int64>(first_row - first_key + bound, -kFar, kFar));
    };
    const int lower = beside(position.lower);
    const int upper = beside(position.upper + 1);
    const int last = static_cast<int>(position.seqlen_k) - first_key;
    for_each_row<kTilesM>(warp_row, [&](int m, int half, int row) {
      if constexpr (Config::kHasChunk) {
        const variant::KeyRange range = position.keys(rows.q_idx(row));
        begin[m][half] = static_cast<int>(range.begin) - first_key;
        end[m][half] = static_cast<int>(range.end) - first_key;
      } else {
        const int step = rows.q_idx(row) - first_row;
        begin[m][half] = lower + step;
        end[m][half] = upper + step < last ? upper + step : last;
      }
    });
  }
};

/// A bit for each of a lane's kN / 4 columns in a row that lie below `end`, which counts from the
/// lane's first one.
template <int kN>
FLASHTILE_DEVICE uint32 columns_below(int end) {
  const int in_pair = (end & 7) < 2 ? end & 7 : 2;
  return (1u << clamp((end >> 3) * 2 + in_pair, 0, kN / 4)) - 1u;
}

/// Sets what positions hide to -inf; `first_column` is the block's column that the accumulator's
/// column 0 is. A row's columns are bits, several of which become predicates at once.
template <class Config, int kTilesM, int kN>
FLASHTILE_DEVICE void mask_positions(float (&acc)[kTilesM][kN / 8][4],
                                     const RowRanges<Config, kTilesM>& ranges, int first_column) {
  const int lane_column = first_column + fresh(lane_idx()) % 4 * 2;
  for_each_row<kTilesM>(0, [&](int m, int half, int) {
    uint32 seen = columns_below<kN>(ranges.end[m][half] - lane_column);
    if constexpr (Config::kHasLowerBound) {
      seen &= ~columns_below<kN>(ranges.begin[m][half] - lane_column);
    }
    FLASHTILE_UNROLL
    for (int i = 0; i < kN / 4; ++i) {
      if ((seen >> i & 1) == 0) acc[m][i / 2][half * 2 + i % 2] = -infinity();
    }
  });
}

/// Sets what listed blocks hide to -inf; `first_key` is the key of the accumulator's column 0.
template <class Config, int kTilesM, int kN, class Rows>
FLASHTILE_DEVICE void mask_unlisted(float (&acc)[kTilesM][kN / 8][4],
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
        if (!rules.is_listed(head, q_idx, lane_key + n * 8 + e)) {
          acc[m][n][half * 2 + e] = -infinity();
        }
      }
    }
  });
}

/// The same for a bias of -inf, which hides by itself only what is a number. One pair after the
/// other, which leaves a bit of each: few tiles come here.
template <class Config, int kTilesM, int kN, class Rows>
FLASHTILE_DEVICE void mask_biased(float (&acc)[kTilesM][kN / 8][4], const ScoreRules<Config>& rules,
                                  const Rows& rows, int warp_row, int first_key) {
  static_assert(kN / 4 <= 32);
  const int lane_key = first_key + lane_idx() % 4 * 2;
  for_each_row<kTilesM>(warp_row, [&](int m, int half, int row) {
    const int q_idx = rows.q_idx(row);
    const int head = rows.head_of(row);
    uint32 hidden = 0;
    FLASHTILE_NO_UNROLL
    for (int i = 0; i < kN / 4; ++i) {
      const bool is_hidden =
          rules.bias_at(head, q_idx, lane_key + i / 2 * 8 + i % 2) == -infinity();
      hidden |= static_cast<uint32>(is_hidden) << i;
    }
    FLASHTILE_UNROLL
    for (int i = 0; i < kN / 4; ++i) {
      if ((hidden >> i & 1) != 0) acc[m][i / 2][half * 2 + i % 2] = -infinity();
    }
  });
}

/// The same for a user's mask. What that takes from a query is read once for the lane's rows, what
/// it takes from a key once for each of the lane's columns.
template <class Config, int kTilesM, int kN, class Rows>
FLASHTILE_DEVICE void mask_pairs(float (&acc)[kTilesM][kN / 8][4], const ScoreRules<Config>& rules,
                                 const Rows& rows, int warp_row, int first_key) {
  using Expressions = typename Config::Expressions;
  const int lane_key = first_key + fresh(lane_idx()) % 4 * 2;
  const auto pair_of = [&](int row, int k_idx) {
    return rules.pair(rows.head_of(row), rows.q_idx(row), k_idx);
  };
  decltype(Expressions::template mask_row<false>(rules.user, pair_of(0, 0))) of_rows[kTilesM][2];
  for_each_row<kTilesM>(warp_row, [&](int m, int half, int row) {
    of_rows[m][half] = Expressions::template mask_row<false>(rules.user, pair_of(row, lane_key));
  });
  FLASHTILE_UNROLL
  for (int n = 0; n < kN / 8; ++n) {
    FLASHTILE_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int k_idx = lane_key + n * 8 + e;
      const auto of_column =
          Expressions::template mask_column<false>(rules.user, pair_of(warp_row, k_idx));
      for_each_row<kTilesM>(warp_row, [&](int m, int half, int row) {
        const bool is_kept = Expressions::template mask_pair<false>(rules.user, pair_of(row, k_idx),
                                                                    of_rows[m][half], of_column);
        if (!is_kept) acc[m][n][half * 2 + e] = -infinity();
      });
    }
  }
}

}  // namespace flashtile::device
