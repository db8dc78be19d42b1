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

/// True when what a CTA works on is in memory that a kernel before may have written.
template <class Config>
FLASHTILE_DEVICE bool place_is_read(const LengthsParam& lengths) {
  return Config::Expressions::kHasLower || Config::Expressions::kHasUpper || reads_lengths(lengths);
}

/// tanh(x) for |x| up to kSmallTanh; relative error 5e-7.
constexpr float kSmallTanh = 0.7f;
FLASHTILE_DEVICE float tanh_of_small(float x) {
  const float square = x * x;
  float sum = 0.0137737105f;
  sum = fused_multiply_add(sum, square, -0.0508362353f);
  sum = fused_multiply_add(sum, square, 0.132811129f);
  sum = fused_multiply_add(sum, square, -0.33330214f);
  return x * fused_multiply_add(sum, square, 0.999999702f);
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

  FLASHTILE_DEVICE const char* bias_address(int head, int q_idx, int k_idx) const {
    const ScoresParam& bias = params.bias;
    return bias.data + sequence.batch_idx * bias.batch_stride + head * bias.head_stride +
           q_idx * bias.row_stride + (k_idx + sequence.leftpad) * bias.key_stride;
  }
  FLASHTILE_DEVICE float bias_at(int head, int q_idx, int k_idx) const {
    if (k_idx < 0 || k_idx >= sequence.seqlen_k) return 0.0f;
    return load_element<Config::kBias>(bias_address(head, q_idx, k_idx));
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
    if constexpr (Expressions::kHasScore) {
      x = Expressions::template score<false>(user, pair(head, q_idx, k_idx), x);
    }
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

  /// A bias of -inf hides the pair, whatever its score is.
  FLASHTILE_DEVICE float add_biases(float x, int head, int q_idx, int k_idx) const {
    if constexpr (Config::kBias != Element::kNone) {
      const float bias = bias_at(head, q_idx, k_idx);
      x = bias == -infinity() ? bias : x + bias;
    }
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
      x = Expressions::template score<false>(user, place, x);
    }
    return add_biases(x, head, q_idx, k_idx);
  }

  /// Whether a listed block holds the pair.
  FLASHTILE_DEVICE bool is_listed(int head, int q_idx, int k_idx) const {
    const BlocksParam& blocks = params.blocks;
    const int64 b = blocks.list_batches == 1 ? 0 : sequence.batch_idx;
    const int64 h = blocks.list_heads == 1 ? 0 : head;
    // Positions have 31 bits, and a division of 32 bits is a fraction of one of 64.
    const auto place = [](int idx, int64 block) {
      return static_cast<int>(static_cast<uint32>(idx) /
                              static_cast<uint32>(block < 0x7fffffff ? block : 0x7fffffff));
    };
    const int row = place(q_idx, blocks.block_rows);
    const int col = place(k_idx, blocks.block_cols);
    if (row >= blocks.list_rows || col >= blocks.list_cols) return false;
    const int64 line = (b * blocks.list_heads + h) * blocks.list_rows + row;
    return (load_global(blocks.listed + line * blocks.list_words + col / 32) >> (col % 32)) & 1u;
  }

  /// What masks besides those by position say of a pair that is there.
  FLASHTILE_DEVICE bool is_kept(int head, int q_idx, int k_idx) const {
    bool kept = true;
    if constexpr (Config::kHasBlockList) kept = is_listed(head, q_idx, k_idx);
    if constexpr (Expressions::kHasMask) {
      // No branch: pairs are asked side by side.
      kept = kept & Expressions::mask(user, pair(head, q_idx, k_idx));
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

}  // namespace flashtile::device
