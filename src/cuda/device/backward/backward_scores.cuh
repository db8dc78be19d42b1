// SPDX-License-Identifier: Apache-2.0
//
// From products to weights and to gradients of products, in accumulators whose rows are keys and
// whose columns are queries.
#pragma once

#include "cuda/device/backward/backward_state.cuh"
#include "cuda/device/score/dropout.cuh"

namespace flashtile::device {

/// e^(logit - lse) where only the scale acts on products; `lse` is in log2 units with kLog2Lse.
template <class Config>
FLASHTILE_DEVICE float plain_weight(float product, float softmax_scale, float lse) {
  if constexpr (Config::kLog2Lse) {
    return exp2_approx(fused_multiply_add(product, softmax_scale * kLog2e, -lse));
  } else {
    // Rounded like the logits that lse is made of: where one key has all the weight, exactly 1.
    return exp2_approx((multiply_rounded(product, softmax_scale) - lse) * kLog2e);
  }
}

template <bool kIsWide>
struct UnsignedOf {
  using Type = uint32;
};
template <>
struct UnsignedOf<true> {
  using Type = uint64;
};

/// One slice of a warp: 16 kTilesN keys by kSlice queries. In shared memory: lse, delta (float32)
/// and ranges of keys (pairs of ints) of the block's queries.
template <class Config, int kTilesN, int kSlice>
struct BackwardScores {
  using Scores = float[kTilesN][kSlice / 8][4];
  /// A bit for each pair of a lane: at 4 m + r from kPairs n on.
  static constexpr int kPairs = 4 * kTilesN;
  static constexpr bool kIsWide = kPairs * kSlice / 8 > 32;
  static_assert(kPairs * kSlice / 8 <= 64);
  using Bits = typename UnsignedOf<kIsWide>::Type;

  const ScoreRules<Config>& rules;
  uint32 vectors;
  int head;
  int block_query;     ///< first query of the block
  int first_query;     ///< of the slice, in the block
  int block_key;       ///< first key of the block
  int first_warp_key;  ///< of the warp, in the block
  bool asks;           ///< masks by more than position may hide pairs of the block

  FLASHTILE_DEVICE int lane_query() const { return first_query + lane_idx() % 4 * 2; }
  FLASHTILE_DEVICE int lane_key() const { return first_warp_key + lane_idx() / 4; }

  /// Products of queries and keys become weights; products of gradients and values become
  /// gradients of products, but for the scale. Masks come afterwards: then one text serves all
  /// blocks, and takes fewer registers.
  FLASHTILE_DEVICE void make_weights(Scores& s, Scores& dp) const {
    const uint32 lse = vectors + static_cast<uint32>(lane_query() * 4);
    FLASHTILE_UNROLL
    for (int n = 0; n < kSlice / 8; ++n) {
      const FloatPair lse_pair = load_shared_pair(lse + static_cast<uint32>(n * 32));
      const FloatPair delta_pair =
          load_shared_pair(lse + static_cast<uint32>(Config::kBlockM * 4 + n * 32));
      uint32 kept = 0;
      if constexpr (Config::kHasDropout) kept = kept_weights(n);
      FLASHTILE_UNROLL
      for (int m = 0; m < kTilesN; ++m) {
        FLASHTILE_UNROLL
        for (int r = 0; r < 4; ++r) {
          const float shift = r % 2 == 0 ? lse_pair.x : lse_pair.y;
          const float delta = r % 2 == 0 ? delta_pair.x : delta_pair.y;
          float dweight = dp[m][n][r];
          bool is_kept = true;
          if constexpr (Config::kHasDropout) {
            is_kept = (kept >> (m * 4 + r)) & 1u;
            dweight = is_kept ? dweight * rules.params.dropout.gain : 0.0f;
          }
          bool is_zero = false;
          float weight;
          float dscore;
          if constexpr (Config::kHasScoreOptions) {
            const int q_idx = clamped_query(n, r % 2);
            float derivative;
            const float logit = rules.logit_and_derivative(
                s[m][n][r], head, q_idx, block_key + key_of(m * 4 + r), derivative);
            weight = exp2_approx((logit - shift) * kLog2e);
            is_zero = weight == 0.0f;
            dscore = weight * (dweight - delta) * derivative;
          } else {
            weight = plain_weight<Config>(s[m][n][r], rules.params.softmax_scale, shift);
            dscore = weight * (dweight - delta);
          }
          s[m][n][r] = is_zero || !is_kept ? 0.0f : weight;
          dp[m][n][r] = is_zero ? 0.0f : dscore;
        }
      }
    }
  }

  /// Sets what masks hide to 0, whatever it was.
  FLASHTILE_DEVICE void hide(Scores& s, Scores& dp) const {
    const Bits listed = listed_pairs();
    FLASHTILE_UNROLL
    for (int n = 0; n < kSlice / 8; ++n) {
      const Vector4 range = ranges(n);
      FLASHTILE_UNROLL
      for (int m = 0; m < kTilesN; ++m) {
        FLASHTILE_UNROLL
        for (int r = 0; r < 4; ++r) {
          if (!sees(range, listed, n, m, r)) s[m][n][r] = dp[m][n][r] = 0.0f;
        }
      }
    }
  }

  /// The keys that the lane's two queries of column tile n see: two begins and ends.
  FLASHTILE_DEVICE Vector4 ranges(int n) const {
    return load_shared_vector(
        vectors + static_cast<uint32>(Config::kBlockM * 8 + (lane_query() + n * 8) * 8));
  }

  /// Rows that are not there stand for the last one that is.
  FLASHTILE_DEVICE int clamped_query(int n, int e) const {
    const int q_idx = block_query + lane_query() + n * 8 + e;
    const int last = rules.sequence.seqlen_q - 1;
    return q_idx < last ? q_idx : last;
  }

  /// What masks besides those by position leave. Found before weights are, by a text that is there
  /// for one column tile only.
  FLASHTILE_DEVICE Bits listed_pairs() const {
    Bits listed = ~Bits{0};
    if constexpr (Config::kHasBlockMap) {
      if (!asks) return listed;
      listed = 0;
      FLASHTILE_NO_UNROLL
      for (int n = 0; n < kSlice / 8; ++n) {
        FLASHTILE_UNROLL
        for (int i = 0; i < kPairs; ++i) {
          const bool is_kept = rules.is_kept(head, block_query + lane_query() + n * 8 + i % 2,
                                             block_key + key_of(i));
          listed |= static_cast<Bits>(is_kept) << (n * kPairs + i);
        }
      }
    }
    return listed;
  }

  /// In the block: of the pair at 4 m + r.
  FLASHTILE_DEVICE int key_of(int i) const { return lane_key() + i / 4 * 16 + i % 4 / 2 * 8; }

  FLASHTILE_DEVICE bool sees(const Vector4& range, Bits listed, int n, int m, int r) const {
    const int key = key_of(m * 4 + r);
    bool is_seen = key < static_cast<int>(r % 2 == 0 ? range.y : range.w);
    if constexpr (Config::kHasLowerBound) {
      is_seen = is_seen && key >= static_cast<int>(r % 2 == 0 ? range.x : range.z);
    }
    if constexpr (Config::kHasBlockMap) {
      is_seen = is_seen && ((listed >> (n * kPairs + m * 4 + r)) & 1u) != 0;
    }
    return is_seen;
  }

  /// A bit for each of the lane's elements of column tile n, at 4 m + r: set where dropout keeps
  /// it. A call of the generator serves the keys of this lane and of its neighbour in the rows for
  /// one query; each of the two makes it for one of their two queries.
  FLASHTILE_DEVICE uint32 kept_weights(int n) const {
    const DropoutParam& dropout = dropout_of<Config>(rules.params.dropout);
    const int group = lane_idx() / 4;
    const int own = group % 2;
    const uint32 batch_head =
        static_cast<uint32>(rules.sequence.batch_idx * rules.params.num_heads + head);
    const int key = block_key + first_warp_key;
    uint32 kept = 0;
    FLASHTILE_UNROLL
    for (int part = 0; part < (kTilesN + 1) / 2; ++part) {
      uint32 words[4];
      dropout_words(words, dropout, batch_head,
                    static_cast<uint32>(block_query + lane_query() + n * 8 + own),
                    static_cast<uint32>(key + part * 32), static_cast<uint32>(group / 2));
      FLASHTILE_UNROLL
      for (int word = 0; word < 4; ++word) {
        const uint32 other = shuffle_xor(words[word], 4);
        // Words of sixteen keys may be the first or the second two.
        const int element = kTilesN == 1 ? word - key % 32 / 8 : part * 4 + word;
        if (element < 0 || element >= 2 * kTilesN) continue;
        FLASHTILE_UNROLL
        for (int e = 0; e < 2; ++e) {
          const uint32 bits = e == own ? words[word] : other;
          const uint32 drawn = own == 0 ? bits & 0xffffu : bits >> 16;
          const int at = element / 2 * 4 + element % 2 * 2 + e;
          if (drawn >= dropout.threshold) kept |= 1u << at;
        }
      }
    }
    return kept;
  }
};

}  // namespace flashtile::device
