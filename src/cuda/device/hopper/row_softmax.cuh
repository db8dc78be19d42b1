// SPDX-License-Identifier: Apache-2.0
//
// The running softmax of the two rows that a lane holds of a warpgroup's 64. Weights are
// 2^((x - reference) scale), as in softmax/online.cuh; here sums of values are under way while the
// reference moves, so they are scaled afterwards, by factors that are kept.
#pragma once

#include "cuda/device/params/sm90_params.hpp"
#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

/// What a small product is multiplied by for a capped logit in log2 units.
FLASHTILE_DEVICE float cap_factor(float product, const float (&line)[4]) {
  const float square = product * product;
  float factor = fused_multiply_add(line[3], square, line[2]);
  factor = fused_multiply_add(factor, square, line[1]);
  return fused_multiply_add(factor, square, line[0]);
}

template <Sm90Reference kReference>
struct RowSoftmax {
  static constexpr float kSlack = 8.0f;
  static constexpr float kNearZero = 24.0f;            ///< in log2 units; sums stay below kGrownSum
  static constexpr float kLargestSum = 1.2676506e30f;  // 2^100
  static constexpr float kGrownSum = 1.0995116e12f;    // 2^40
  static constexpr float kSmallestSum = 8.2718061e-25f;  // 2^-80

  float reference[2];
  float sum[2];      ///< of the lane's own columns
  float largest[2];  ///< logit of the lane's own columns, where it is asked for; NaN stays

  /// `follows`: the reference is a maximum, of no key at first.
  FLASHTILE_DEVICE void reset(bool follows) {
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      reference[half] = follows ? -infinity() : 0.0f;
      sum[half] = 0.0f;
      largest[half] = -infinity();
    }
  }

  template <int kCount>
  FLASHTILE_DEVICE void track_largest(const float (&logits)[kCount]) {
    FLASHTILE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      largest[i / 2 % 2] = larger_or_nan(largest[i / 2 % 2], logits[i]);
    }
  }

  /// True when every row of the warp has a reference above `floor`, and sums that are far from
  /// overflow: blocks that references do not follow may come.
  FLASHTILE_DEVICE bool is_settled(float floor) const {
    bool is_settled = true;
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      is_settled = is_settled && reference[half] > floor && sum[half] < kGrownSum;
    }
    return all_lanes(is_settled);
  }

  /// True when all references of the warp are 0.
  FLASHTILE_DEVICE bool is_at_zero() const {
    return all_lanes(reference[0] == 0.0f && reference[1] == 0.0f);
  }

  /// True when a reference of the warp, times a scale, is rounded by more than weights bear, or
  /// overflows.
  FLASHTILE_DEVICE bool is_huge() const {
    constexpr float kHuge = 1e5f;
    bool is_huge = false;
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      is_huge = is_huge || (absolute(reference[half]) > kHuge && is_finite(reference[half]));
    }
    return any_lane(is_huge);
  }

  /// Moves references that lie too far below the logits. True in all lanes of the warp where one
  /// has moved that sums depend on; `factors` are then what those are multiplied by.
  /// `kStaysAtZero`: where logits are not far from 0, the reference is 0.
  template <bool kStaysAtZero = false, int kCount>
  FLASHTILE_DEVICE bool follow(const float (&logits)[kCount], float scale, float (&factors)[2]) {
    float top[2] = {logits[0], logits[2]};
    FLASHTILE_UNROLL
    for (int i = 0; i < kCount; ++i) top[i / 2 % 2] = larger(top[i / 2 % 2], logits[i]);
    const float slack = (kStaysAtZero ? kNearZero : kSlack) * reciprocal_approx(scale);
    const bool is_far = top[0] > reference[0] + slack || top[1] > reference[1] + slack;
    factors[0] = factors[1] = 1.0f;
    if (!any_lane(is_far)) return false;
    bool has_sums = false;
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float highest = larger(top[half], shuffle_xor(top[half], 1));
      highest = larger(highest, shuffle_xor(highest, 2));
      if (kStaysAtZero && absolute(highest) <= slack) highest = 0.0f;
      highest = larger(highest, reference[half]);
      if (reference[half] != highest) {
        factors[half] = exp2_approx((reference[half] - highest) * scale);
      }
      has_sums = has_sums || reference[half] != -infinity();
      reference[half] = highest;
      sum[half] *= factors[half];
    }
    return any_lane(has_sums);
  }

  /// Logits become weights, in place, and are summed. References may be other than 0 only where
  /// `kHasReference`.
  template <bool kHasReference, int kCount>
  FLASHTILE_DEVICE void weigh(float (&logits)[kCount], float scale) {
    float shift[2];
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      shift[half] = reference[half] == -infinity() ? 0.0f : -reference[half] * scale;
    }
    FLASHTILE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const int half = i / 2 % 2;
      const float power =
          kHasReference ? fused_multiply_add(logits[i], scale, shift[half]) : logits[i] * scale;
      logits[i] = exp2_approx(power);
      sum[half] += logits[i];
    }
  }

  /// The same where a logit's product with the scale may overflow.
  template <int kCount>
  FLASHTILE_DEVICE void weigh_wide(float (&logits)[kCount], float scale) {
    FLASHTILE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const int half = i / 2 % 2;
      const float base = reference[half] == -infinity() ? 0.0f : reference[half];
      logits[i] = exp2_approx((logits[i] - base) * scale);
      sum[half] += logits[i];
    }
  }

  /// The same for products of which logits in log2 units are a polynomial of two coefficients. It
  /// holds where the fourth powers of a row's products add up to at most `limit`; otherwise the
  /// row's sum becomes infinite, and its tile is worked out again.
  template <int kCount>
  FLASHTILE_DEVICE void weigh_tiny(float (&products)[kCount], const float (&line)[2], float limit) {
    float shift[2];
    float fourth_powers[2] = {};
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      shift[half] = reference[half] == -infinity() ? 0.0f : -reference[half];
    }
    FLASHTILE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const int half = i / 2 % 2;
      const float square = products[i] * products[i];
      fourth_powers[half] = fused_multiply_add(square, square, fourth_powers[half]);
      const float factor = fused_multiply_add(line[1], square, line[0]);
      products[i] = exp2_approx(fused_multiply_add(products[i], factor, shift[half]));
      sum[half] += products[i];
    }
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (!(fourth_powers[half] <= limit)) sum[half] = infinity();
    }
  }

  /// The same for products times `factor`, with a straight line of columns in log2 units: `slope`
  /// for each, and `offsets` at the lane's first column. References are in log2 units.
  template <int kCount>
  FLASHTILE_DEVICE void weigh_tilted(float (&products)[kCount], float factor, float slope,
                                     const float (&offsets)[2]) {
    float shift[2];
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      shift[half] = offsets[half] - (reference[half] == -infinity() ? 0.0f : reference[half]);
    }
    FLASHTILE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const int half = i / 2 % 2;
      const float column = static_cast<float>(i / 4 * 8 + i % 2);
      const float tilt = fused_multiply_add(slope, column, shift[half]);
      products[i] = exp2_approx(fused_multiply_add(products[i], factor, tilt));
      sum[half] += products[i];
    }
  }

  /// The same for products times `factor`, to which terms are added: `for_each_term(use)` calls
  /// `use(i, term)`. References and terms are natural, or in log2 units.
  template <bool kHasReference, bool kInLog2, int kCount, class ForEachTerm>
  FLASHTILE_DEVICE void weigh_with_terms(float (&products)[kCount], float factor,
                                         const ForEachTerm& for_each_term) {
    float shift[2];
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float base = kInLog2 ? reference[half] : reference[half] * kLog2e;
      shift[half] = reference[half] == -infinity() ? 0.0f : -base;
    }
    for_each_term([&](int i, float term) {
      const int half = i / 2 % 2;
      float shifted = term;
      if constexpr (kInLog2) {
        if constexpr (kHasReference) shifted += shift[half];
      } else {
        shifted = kHasReference ? fused_multiply_add(term, kLog2e, shift[half]) : term * kLog2e;
      }
      products[i] = exp2_approx(fused_multiply_add(products[i], factor, shifted));
      sum[half] += products[i];
    });
  }

  /// Sums over the lanes that share a row.
  FLASHTILE_DEVICE void finish_sums() {
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      sum[half] += shuffle_xor(sum[half], 1);
      sum[half] += shuffle_xor(sum[half], 2);
    }
  }

  /// False where the row has to be worked out again with a reference that follows. `sees_keys`:
  /// some key is not masked.
  FLASHTILE_DEVICE bool is_in_range(int half, bool sees_keys) const {
    if (!(sum[half] < kLargestSum)) return false;
    if (kReference == Sm90Reference::kZero) return sum[half] > kSmallestSum || !sees_keys;
    return reference[half] != -infinity() || !sees_keys;
  }
};

}  // namespace flashtile::device
