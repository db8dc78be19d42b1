// SPDX-License-Identifier: Apache-2.0
//
// From a warpgroup's products to logits where options change or hide scores one by one, and
// dropout. A lane's scores of a block are an accumulator of one tile of rows.
#pragma once

#include "cuda/device/hopper/row_softmax.cuh"
#include "cuda/device/hopper/sm90_keys.cuh"
#include "cuda/device/ptx/exchange.cuh"
#include "cuda/device/ptx/warpgroup.cuh"
#include "cuda/device/score/dropout.cuh"
#include "cuda/device/score/logits.cuh"

namespace flashtile::device {

template <class Config>
struct Sm90Scores {
  using Kind = LogitKind<Config>;
  using Keys = Sm90Keys<Config>;
  using Rows = QueryRows<false>;
  using Expressions = typename Config::Expressions;
  using UserParams = typename Expressions::Params;
  static constexpr auto kShape = Sm90Memory<Config>::kShape;
  static constexpr int kBlockN = Config::kBlockN;
  using Scores = float[kBlockN / 2];
  /// Blocks may be known to lie inside of all that is read for their pairs.
  static constexpr bool kAsksInside =
      Expressions::kIsScoreLinear || (!Expressions::kHasScore && Config::kBias != Element::kNone);
  /// Options add terms to scores that do not depend on them.
  static constexpr bool kHasTerms = Kind::kIsGeneral && Expressions::kAddsToScore;
  /// Terms from shared memory alone: exponents are sums of two products, and nobody needs logits.
  static constexpr bool kAddsToExponents = (Config::kAddsByDistance || Config::kCopiesBias) &&
                                           !Config::kHasSoftcap && !Config::kWantsMaxLogit;
  /// Such terms of distances, and logits, are in log2 units, but for tiles that are worked out
  /// again: huge ones overflow. Where references are 0 an exponent is one fused multiply-add then.
  /// Only where exponentials are what takes the time.
  static constexpr bool kTermsInLog2 =
      kAddsToExponents && Config::kAddsByDistance && Config::kHeadDim <= 64;
  /// Rows may not have seen a key behind a tile's first block, or logits may go far from its own.
  static constexpr bool kAsksSettled = Config::kIsMapped || Kind::kIsGeneral;
  /// Which weights dropout keeps is found in front of the exponentials, or, where registers are
  /// short, behind them, when the values before have been added. Not beside products of the same
  /// warp, where the generator takes longest.
  static constexpr bool kDropsLate = Config::kHasDropout && Config::kComputeRegisters <= 160;
  /// Registers that stay for a tile, instead of a tenth of the generator for each block.
  static constexpr bool kKeepsDropoutRows = Config::kHeadDim > 128 ||
                                            (Config::kComputeRegisters == 160 &&
                                             !Config::kHasSeedTensor);
  /// Masks other than by position hide pairs.
  static constexpr bool kHidesPairs = Config::kHasBlockList || Expressions::kHasMask;

  const Sm90ForwardParams& params;
  const UserParams& user;
  float slope = 0.0f;   ///< of the tile's head, negative and in log2 units
  float lane_distance;  ///< distance_of, in a tile and a block that begin at 0
  /// Keys, which a bias comes with, are released before weights are made of it.
  static constexpr bool kTakesBiasAhead = Config::kCopiesBias && kBlockN <= 64;
  uint32 biases[kTakesBiasAhead ? kBlockN / 4 : 1];  ///< pairs
  uint32 lane_terms = 0;  ///< those from shared memory: where the lane's first two lie
  float terms[kHasTerms && !Config::kCopiesBias && !Config::kAddsByDistance ? kBlockN / 2 : 1];
  uint32 kept[Config::kHasDropout ? kBlockN / 4 : 1];  ///< bits of packed weights
  DropoutRow dropout_rows[2];                          ///< of the tile's rows
  uint32 seen[2] = {};  ///< a bit of each column, for both rows, of a block that masks cut

  FLASHTILE_DEVICE Sm90Scores(const Sm90ForwardParams& p, const UserParams& u)
      : params(p), user(u) {
    const int lane = lane_idx();
    lane_distance = static_cast<float>(warp_row() + lane / 4 - lane % 4 * 2);
  }

  FLASHTILE_DEVICE static auto tile_of(Scores& scores) -> float (&)[1][kBlockN / 8][4] {
    return reinterpret_cast<float(&)[1][kBlockN / 8][4]>(scores);
  }
  FLASHTILE_DEVICE static int warp_row() { return (thread_idx() / kWarpSize - 4) * 16; }

  FLASHTILE_DEVICE int batch_idx_of(const Sm90Tile& tile) const {
    return Config::kPackedQ ? tile.batch_idx : tile.batch;
  }
  FLASHTILE_DEVICE Sequence sequence_of(const Sm90Tile& tile) const {
    const PositionParam& position = params.call.position;
    Sequence sequence;
    sequence.batch_idx = batch_idx_of(tile);
    sequence.seqlen_q = Keys(params, tile).seqlen_q();
    sequence.seqlen_k = Config::kHasLengths ? tile.num_keys : params.call.lengths.max_seqlen_k;
    sequence.leftpad = Config::kHasLengths ? tile.leftpad : 0;
    sequence.query_offset = position.has_query_offset
                                ? position.query_offset
                                : static_cast<int64>(sequence.seqlen_k) - sequence.seqlen_q;
    return sequence;
  }
  /// Anew each time, and so is all that comes from it: registers are dear.
  FLASHTILE_DEVICE Rows rows_of(const Sm90Tile& tile) const {
    Rows rows;
    rows.first = fresh(Keys(params, tile).first_row());
    rows.num_rows = Keys(params, tile).seqlen_q();
    rows.group_size = 1;
    rows.head = fresh(tile.head);
    return rows;
  }
  /// Calls `use(rules)`: the options of the tile's (sequence, head).
  template <class Use>
  FLASHTILE_DEVICE auto with_rules(const Sm90Tile& tile, const Use& use) const {
    const Sequence sequence = sequence_of(tile);
    const variant::PositionMask positions_are_apart;
    return use(ScoreRules<Config>{params.call, user, sequence, positions_are_apart});
  }

  FLASHTILE_DEVICE void start_tile(const Sm90Tile& tile) {
    if constexpr (kKeepsDropoutRows) find_dropout_rows(tile);
    if constexpr (Kind::kIsTilted) {
      slope = with_rules(
          tile, [&](const ScoreRules<Config>& rules) { return -kLog2e * rules.slope(tile.head); });
    }
  }

  /// Of logits as softmax gets them, to powers of two.
  FLASHTILE_DEVICE float logit_scale(const Sm90Tile& tile) const {
    if constexpr (kTermsInLog2) return tile.kind == kTileToRedo ? kLog2e : 1.0f;
    if constexpr (Kind::kIsGeneral) return kLog2e;
    if constexpr (Kind::kIsTilted || Kind::kIsCapped) return 1.0f;
    return params.scale;
  }

  /// Of what ALiBi is added to, to powers of two.
  FLASHTILE_DEVICE float tilted_scale() const { return Kind::kIsCapped ? 1.0f : params.scale; }

  /// How far a row's query lies behind the lane's first key of a block.
  FLASHTILE_DEVICE float distance_of(const Sm90Tile& tile, int half, int n_block) const {
    const int64 of_tile =
        sequence_of(tile).query_offset + Keys(params, tile).first_row() - n_block * kBlockN;
    return static_cast<float>(of_tile) + (lane_distance + static_cast<float>(half * 8));
  }

  /// Calls `use(i, term)` for what is added to each score.
  template <class Use>
  FLASHTILE_DEVICE void for_each_term(const Use& use) const {
    if constexpr (Config::kAddsByDistance) {
      // What a row's next eight columns add is what those before add eight rows below.
      FloatPair below = load_shared_floats(lane_terms);
      FLASHTILE_UNROLL
      for (int n = 0; n < kBlockN / 8; ++n) {
        const FloatPair above = load_shared_floats(lane_terms + static_cast<uint32>(n * 32 + 32));
        use(n * 4, above.x);
        use(n * 4 + 1, above.y);
        use(n * 4 + 2, below.x);
        use(n * 4 + 3, below.y);
        below = above;
      }
    } else if constexpr (Config::kCopiesBias) {
      FLASHTILE_UNROLL
      for (int i = 0; i < kBlockN / 4; ++i) {
        float pair[2];
        unpack<Config::kBias>(kTakesBiasAhead ? biases[kTakesBiasAhead ? i : 0] : copied_pair(i),
                              pair[0], pair[1]);
        use(i * 2, pair[0]);
        use(i * 2 + 1, pair[1]);
      }
    } else {
      FLASHTILE_UNROLL
      for (int i = 0; i < kBlockN / 2; ++i) use(i, terms[i]);
    }
  }

  /// Natural logits, in place; in log2 units where kTermsInLog2 says so.
  FLASHTILE_DEVICE void make_logits(Scores& scores, const Sm90Tile& tile, int n_block) const {
    if constexpr (kHasTerms) {
      if constexpr (Config::kHasSoftcap) {
        cap_scores<Config, 1, kBlockN>(tile_of(scores), params.call);
      }
      const bool in_log2 = kTermsInLog2 && tile.kind != kTileToRedo;
      const float scale = in_log2               ? params.scale
                          : Config::kHasSoftcap ? params.call.softcap
                                                : params.call.softmax_scale;
      for_each_term(
          [&](int i, float term) { scores[i] = fused_multiply_add(scores[i], scale, term); });
    } else {
      change_scores(scores, tile, n_block);
    }
  }

  /// By options, one by one; or only what they add.
  FLASHTILE_DEVICE void change_scores(Scores& scores, const Sm90Tile& tile, int n_block) const {
    with_rules(tile, [&](const ScoreRules<Config>& rules) {
      const Rows rows = rows_of(tile);
      const int first_key = n_block * kBlockN;
      if constexpr (kAsksInside) {
        const int first = warp_row() / 64 * 64;
        bool is_inside =
            rows.is_there(first + 63) && first_key + kBlockN <= rules.sequence.seqlen_k;
        if constexpr (Expressions::kHasScore) {
          const int q_idx = rows.first + first;
          is_inside = is_inside && score_reads_inside(rules, tile.head, q_idx, q_idx + 63,
                                                      first_key, first_key + kBlockN - 1);
        }
        if (is_inside) {
          apply_scores<Config, true, 1, kBlockN, Config::kBiasInPairs, kHasTerms>(
              tile_of(scores), rules, rows, warp_row(), first_key);
          return;
        }
      }
      apply_scores<Config, false, 1, kBlockN, Config::kBiasInPairs, kHasTerms>(
          tile_of(scores), rules, rows, warp_row(), first_key);
    });
  }

  /// Tells whether products are so small that a polynomial caps them: special functions are what
  /// the kernel waits for. A sum of powers takes half of a maximum's time.
  FLASHTILE_DEVICE static float fourth_powers(const Scores& products) {
    float sums[2] = {};
    FLASHTILE_UNROLL
    for (int i = 0; i < kBlockN / 2; ++i) {
      const float square = products[i] * products[i];
      sums[i % 2] = fused_multiply_add(square, square, sums[i % 2]);
    }
    return sums[0] + sums[1];
  }
  /// Products become capped logits in log2 units.
  FLASHTILE_DEVICE void cap(Scores& scores, bool is_small) const {
    if (is_small) {
      FLASHTILE_UNROLL
      for (int i = 0; i < kBlockN / 2; ++i) scores[i] *= cap_factor(scores[i], params.cap_line);
    } else {
      const float factor = params.call.softmax_scale * params.call.inverse_softcap;
      // Some at a time: registers are dear.
      constexpr int kAtOnce = 8;
      FLASHTILE_UNROLL
      for (int first = 0; first < kBlockN / 2; first += kAtOnce) {
        FLASHTILE_UNROLL
        for (int i = first; i < first + kAtOnce; ++i) {
          scores[i] = params.scale * ScoreRules<Config>::squash(scores[i] * factor);
        }
        pin(reinterpret_cast<float(&)[kAtOnce]>(scores[first]));
      }
    }
  }

  /// Logits in log2 units with ALiBi, in place.
  FLASHTILE_DEVICE void level(Scores& scores, const Sm90Tile& tile, int n_block) const {
    level_scores<1, kBlockN>(tile_of(scores), tilted_scale(), [&](int, int half) -> TiltedRow {
      return {slope, distance_of(tile, half, n_block)};
    });
  }

  /// Which pairs masks other than by position leave of a block that they cut.
  FLASHTILE_DEVICE void find_seen(const Sm90Tile& tile, int n_block) {
    with_rules(tile, [&](const ScoreRules<Config>& rules) {
      if constexpr (Expressions::kIsMaskLinear) {
        const Rows rows = rows_of(tile);
        const int first_key = n_block * kBlockN;
        const bool is_inside = holds_at_corners(
            rules, tile.head, rows.q_idx(warp_row()), rows.q_idx(warp_row() + 15), first_key,
            first_key + kBlockN - 1,
            [&](const Pair& corner) { return Expressions::mask_is_inside(user, corner); });
        if (is_inside) return ask_pairs<true>(rules, tile, n_block);
      }
      ask_pairs<false>(rules, tile, n_block);
    });
  }

  /// A bit of each of a lane's pairs, for each row. Some columns at a time, whose reads are under
  /// way together: few registers and little text. What a user's mask takes from a query is read
  /// once, what it takes from a key once for both rows. kIsInside: all that is read is there.
  template <bool kIsInside>
  FLASHTILE_DEVICE void ask_pairs(const ScoreRules<Config>& rules, const Sm90Tile& tile,
                                  int n_block) {
    const Rows rows = rows_of(tile);
    const int row = warp_row() + lane_idx() / 4;
    const int q_idx[2] = {rows.q_idx(row), rows.q_idx(row + 8)};
    const int first_key = n_block * kBlockN + lane_idx() % 4 * 2;
    const auto of_row = [&](int half) {
      if constexpr (Expressions::kHasMask) {
        return Expressions::template mask_row<kIsInside>(
            user, rules.pair(tile.head, q_idx[half], first_key));
      } else {
        return 0;
      }
    };
    const decltype(of_row(0)) of_rows[2] = {of_row(0), of_row(1)};
    seen[0] = seen[1] = 0;
    constexpr bool kHasRoom = Config::kComputeRegisters > 200;
    constexpr int kAtOnce = !kHasRoom ? 4 : kBlockN % 64 == 0 ? 16 : kBlockN % 32 == 0 ? 8 : 4;
    FLASHTILE_NO_UNROLL
    for (int first = 0; first < kBlockN / 4; first += kAtOnce) {
      uint32 bits[2] = {};
      FLASHTILE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int base = first_key + first * 4;
        const int step = i / 2 * 8 + i % 2;
        bool is_kept[2] = {true, true};
        if constexpr (Expressions::kHasMask) {
          const auto pair_of = [&](int half) {
            Pair pair = rules.pair(tile.head, q_idx[half], kIsInside ? base : base + step);
            if constexpr (kIsInside) pair.k_step = step;
            return pair;
          };
          const auto of_column = Expressions::template mask_column<kIsInside>(user, pair_of(0));
          FLASHTILE_UNROLL
          for (int half = 0; half < 2; ++half) {
            is_kept[half] = Expressions::template mask_pair<kIsInside>(user, pair_of(half),
                                                                       of_rows[half], of_column);
          }
        }
        FLASHTILE_UNROLL
        for (int half = 0; half < 2; ++half) {
          if constexpr (Config::kHasBlockList) {
            is_kept[half] = is_kept[half] & rules.is_listed(tile.head, q_idx[half], base + step);
          }
          bits[half] |= static_cast<uint32>(is_kept[half]) << i;
        }
      }
      FLASHTILE_UNROLL
      for (int half = 0; half < 2; ++half) seen[half] |= bits[half] << first;
    }
  }

  /// Of find_seen.
  FLASHTILE_DEVICE void hide_unseen(Scores& scores) const {
    FLASHTILE_UNROLL
    for (int i = 0; i < kBlockN / 2; ++i) {
      const uint32 bit = 1u << (i / 4 * 2 + i % 2);
      if ((seen[i / 2 % 2] & bit) == 0) scores[i] = -infinity();
    }
  }

  /// What a bias of -inf hides does so by itself where the score is a number. Here whatever it is:
  /// of tiles whose results were not finite.
  FLASHTILE_DEVICE void hide_biased(Scores& scores, const Sm90Tile& tile, int n_block) const {
    with_rules(tile, [&](const ScoreRules<Config>& rules) {
      mask_biased<Config, 1, kBlockN>(tile_of(scores), rules, rows_of(tile), warp_row(),
                                      n_block * kBlockN);
    });
  }

  /// Whether some row of the tile sees a key.
  FLASHTILE_DEVICE bool is_seen_by_any(const Sm90Tile& tile, int key) const {
    return with_rules(tile, [&](const ScoreRules<Config>& rules) {
      const Keys keys(params, tile);
      const int first = keys.first_row();
      bool is_seen = false;
      FLASHTILE_NO_UNROLL
      for (int q_idx = first; q_idx < first + Keys::kBlockM && q_idx < keys.seqlen_q() && !is_seen;
           ++q_idx) {
        is_seen = key >= keys.begin(q_idx) && key < keys.end(q_idx) &&
                  rules.is_kept(tile.head, q_idx, key);
        if constexpr (Config::kBias != Element::kNone) {
          is_seen = is_seen && rules.bias_at(tile.head, q_idx, key) != -infinity();
        }
      }
      return is_seen;
    });
  }

  /// What does not depend on products: terms of logits, and which pairs masks leave. While the
  /// products are under way.
  FLASHTILE_DEVICE void work_ahead(const Sm90Tile& tile, int n_block, Cover cover) {
    if constexpr (kHidesPairs) {
      if (cover == Cover::kPart) find_seen(tile, n_block);
      pin(seen);
    }
    if constexpr (kHasTerms && !Config::kAddsByDistance && !Config::kCopiesBias) {
      change_scores(terms, tile, n_block);
      pin(terms);
    }
  }

  /// Where terms by distance have been made of a block (Sm90Terms).
  FLASHTILE_DEVICE void take_terms(uint32 made) {
    const int thread = fresh(thread_idx());
    const int row = (thread / kWarpSize - 4) * 16 + thread % kWarpSize / 4;
    // Of the lane's first columns in the lower one of its rows. Pairs are aligned in one copy.
    const int place = Keys::kBlockM - 1 - (row + 8) + thread % 4 * 2;
    constexpr int kCopy = kShape.term_copy_bytes();
    lane_terms = made + static_cast<uint32>(place % 2 == 0 ? place * 4 : kCopy + (place - 1) * 4);
  }

  /// Where the copy engine has left the bias of a block.
  FLASHTILE_DEVICE void take_bias(uint32 copied) {
    const int thread = fresh(thread_idx());
    const int row = (thread / kWarpSize - 4) * 16 + thread % kWarpSize / 4;
    lane_terms = copied + static_cast<uint32>(row * 64 + row / 2 % 4 * 16 + thread % 4 * 4);
    if constexpr (kTakesBiasAhead) {
      FLASHTILE_UNROLL
      for (int i = 0; i < kBlockN / 4; ++i) biases[i] = copied_pair(i);
    }
  }
  /// Of two columns, for both rows in turns.
  FLASHTILE_DEVICE uint32 copied_pair(int i) const {
    // A row's four pieces of 16 bytes are swizzled by two bits of its number.
    const int n = i / 2;
    return load_shared_word((lane_terms ^ static_cast<uint32>(n % 4 * 16)) +
                            static_cast<uint32>(n / 4 * kShape.bias_chunk_bytes() + i % 2 * 512));
  }

  FLASHTILE_DEVICE void find_dropout_rows(const Sm90Tile& tile) {
    if constexpr (Config::kHasDropout) {
      const DropoutParam& dropout = dropout_of<Config>(params.call.dropout);
      const auto batch_head =
          static_cast<uint32>(batch_idx_of(tile) * params.call.num_heads + tile.head);
      const int row = Keys(params, tile).first_row() + warp_row() + lane_idx() / 4;
      FLASHTILE_UNROLL
      for (int half = 0; half < 2; ++half) {
        dropout_rows[half] = DropoutRow(dropout, batch_head, static_cast<uint32>(row + half * 8));
      }
    }
  }
  /// Which weights of a block dropout keeps.
  FLASHTILE_DEVICE void find_kept(const Sm90Tile& tile, int n_block) {
    const DropoutParam& dropout = dropout_of<Config>(params.call.dropout);
    if constexpr (!kKeepsDropoutRows) find_dropout_rows(tile);
    FLASHTILE_UNROLL
    for (int group = 0; group < kBlockN / 32; ++group) {
      const DropoutColumns columns(dropout, static_cast<uint32>(n_block * kBlockN + group * 32),
                                   static_cast<uint32>(lane_idx() % 4));
      FLASHTILE_UNROLL
      for (int half = 0; half < 2; ++half) {
        uint32 words[4];
        columns.words(words, dropout, dropout_rows[half]);
        FLASHTILE_UNROLL
        for (int n = 0; n < 4; ++n) {
          kept[(group * 4 + n) * 2 + half] =
              kept_halves<Config::kKeepsHalf>(words[n], dropout.threshold);
        }
      }
    }
  }
};

}  // namespace flashtile::device
