// SPDX-License-Identifier: Apache-2.0
//
// The running softmax of a warp's rows. Weights are 2^((x - reference) scale) for a reference of
// each row that need not be the maximum: any number near it gives the same result, because weights
// and sums are floating-point numbers and everything is divided by the sum in the end.
//
// - With masks, and until a row has a reference: the reference follows the maximum, but only where
//   that has grown by more than kSlack (in log2 units), so that most steps rescale nothing.
// - After that, where weights have float32's exponents (bf16, TF32): the reference stays, and no
//   maximum is taken at all. A row whose sum leaves [0, kLargestSum] is worked out again in the
//   first way (is_in_range, once for each tile); kLargestSum leaves room for values of 2^27.
// - What is added to logits along keys or diagonals (ALiBi, a user's terms) is the same for several
//   rows of a lane less references in a line (align): so it is made ready once for all of them.
// float16 weights have five bits of exponent: there the first way is taken everywhere.
#pragma once

#include "cuda/device/mma/operands.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

template <class Config, int kTilesM>
struct OnlineSoftmax {
  static constexpr float kSlack = 8.0f;
  static constexpr float kLargestSum = 1.2676506e30f;  // 2^100

  float reference[kTilesM][2];  ///< of each row that the lane holds; -inf: no key was seen yet
  float sum[kTilesM][2];        ///< of the lane's own columns
  float scale;                  ///< log2 units of a logit as it is given; positive
  float slack;                  ///< kSlack in units of logits

  FLASHTILE_DEVICE explicit OnlineSoftmax(float logit_scale)
      : scale(logit_scale), slack(kSlack * reciprocal_approx(logit_scale)) {
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      FLASHTILE_UNROLL
      for (int half = 0; half < 2; ++half) {
        reference[m][half] = -infinity();
        sum[m][half] = 0.0f;
      }
    }
  }

  /// True when every row of the warp has a reference.
  FLASHTILE_DEVICE bool is_settled() const {
    bool is_finite_here = true;
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      is_finite_here = is_finite_here && is_finite(reference[m][0]) && is_finite(reference[m][1]);
    }
    return all_lanes(is_finite_here);
  }

  /// Moves references that lie too far below the logits, and what has been summed with them.
  /// `share(highest)` adds what other warps see of the lane's rows.
  template <int kN, int kTilesV, class Share>
  FLASHTILE_DEVICE void follow(const float (&logits)[kTilesM][kN / 8][4],
                               float (&acc)[kTilesM][kTilesV][4], const Share& share) {
    float highest[kTilesM][2];
    bool is_far = false;
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      FLASHTILE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float top = logits[m][0][half * 2];
        FLASHTILE_UNROLL
        for (int n = 0; n < kN / 8; ++n) {
          top = larger(top, larger(logits[m][n][half * 2], logits[m][n][half * 2 + 1]));
        }
        highest[m][half] = top;
      }
    }
    share(highest);
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      FLASHTILE_UNROLL
      for (int half = 0; half < 2; ++half) {
        is_far = is_far || highest[m][half] > reference[m][half] + slack;
      }
    }
    if (!any_lane(is_far)) return;
    bool has_sums = false;
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      FLASHTILE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float top = highest[m][half];
        top = larger(top, shuffle_xor(top, 1));
        top = larger(top, shuffle_xor(top, 2));
        top = larger(top, reference[m][half]);
        const float factor =
            reference[m][half] == top ? 1.0f : exp2_approx((reference[m][half] - top) * scale);
        has_sums = has_sums || reference[m][half] != -infinity();
        reference[m][half] = top;
        highest[m][half] = factor;
      }
    }
    // The first block of a tile finds nothing that could move.
    if (any_lane(has_sums)) scale_sums(highest, acc);
  }

  template <int kTilesV>
  FLASHTILE_DEVICE void scale_sums(const float (&factors)[kTilesM][2],
                                   float (&acc)[kTilesM][kTilesV][4]) {
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      FLASHTILE_UNROLL
      for (int half = 0; half < 2; ++half) {
        sum[m][half] *= factors[m][half];
        FLASHTILE_UNROLL
        for (int v = 0; v < kTilesV; ++v) {
          acc[m][v][half * 2] *= factors[m][half];
          acc[m][v][half * 2 + 1] *= factors[m][half];
        }
      }
    }
  }

  /// Logits become weights, in place, and are summed. kWideLogits: logits may be so large that
  /// their product with the scale overflows.
  template <int kN, bool kWideLogits>
  FLASHTILE_DEVICE void weigh(float (&logits)[kTilesM][kN / 8][4]) {
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      FLASHTILE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float taken = base(m, half);
        const float shift = -taken * scale;
        FLASHTILE_UNROLL
        for (int n = 0; n < kN / 8; ++n) {
          FLASHTILE_UNROLL
          for (int e = 0; e < 2; ++e) {
            float& x = logits[m][n][half * 2 + e];
            x = kWideLogits ? exp2_approx((x - taken) * scale)
                            : exp2_approx(fused_multiply_add(x, scale, shift));
            sum[m][half] += x;
          }
        }
      }
    }
  }

  /// What is taken from a row's logits.
  FLASHTILE_DEVICE float base(int m, int half) const {
    return reference[m][half] == -infinity() ? 0.0f : reference[m][half];
  }

  /// The same for exponents x factor + slope (column - of the lane's first) + shift in log2 units;
  /// `line_of(m, half)` has slope and shift of a row. One more operation for each, or for each
  /// column where lines are the same: so columns come first.
  template <int kN, class LineOf>
  FLASHTILE_DEVICE void weigh_tilted(float (&logits)[kTilesM][kN / 8][4], float factor,
                                     const LineOf& line_of) {
    FLASHTILE_UNROLL
    for (int n = 0; n < kN / 8; ++n) {
      FLASHTILE_UNROLL
      for (int e = 0; e < 2; ++e) {
        FLASHTILE_UNROLL
        for (int m = 0; m < kTilesM; ++m) {
          FLASHTILE_UNROLL
          for (int half = 0; half < 2; ++half) {
            const auto line = line_of(m, half);
            float& x = logits[m][n][half * 2 + e];
            const float tilt =
                fused_multiply_add(line.slope, static_cast<float>(n * 8 + e), line.shift);
            x = exp2_approx(fused_multiply_add(x, factor, tilt));
            sum[m][half] += x;
          }
        }
      }
    }
  }

  /// The same for exponents.
  template <int kN>
  FLASHTILE_DEVICE void weigh_exponents(float (&exponents)[kTilesM][kN / 8][4]) {
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      FLASHTILE_UNROLL
      for (int n = 0; n < kN / 8; ++n) {
        FLASHTILE_UNROLL
        for (int r = 0; r < 4; ++r) {
          exponents[m][n][r] = exp2_approx(exponents[m][n][r]);
          sum[m][r / 2] += exponents[m][n][r];
        }
      }
    }
  }

  /// References of a lane's rows become those of a line that rises by `slope` a row, none below
  /// what it was, and what has been summed follows. False, and nothing has happened, where one of
  /// them would be far above what it was, or has never been set.
  template <int kTilesV>
  FLASHTILE_DEVICE bool align(float slope, float (&acc)[kTilesM][kTilesV][4]) {
    constexpr float kMostRise = 48.0f;  // in log2 units
    float begin[kTilesM][2];            // of a line through the row's reference
    float top = -infinity();
    float bottom = infinity();
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      FLASHTILE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const auto row = static_cast<float>(m * 16 + half * 8);
        begin[m][half] = fused_multiply_add(-slope, row, reference[m][half]);
        top = larger(top, begin[m][half]);
        bottom = smaller(bottom, begin[m][half]);
      }
    }
    if (!all_lanes((top - bottom) * scale <= kMostRise)) return false;
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      FLASHTILE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const auto row = static_cast<float>(m * 16 + half * 8);
        reference[m][half] = fused_multiply_add(slope, row, top);
        begin[m][half] = exp2_approx((begin[m][half] - top) * scale);
      }
    }
    scale_sums(begin, acc);
    return true;
  }

  /// Sums over the lanes that share a row.
  FLASHTILE_DEVICE void finish_sums() {
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      FLASHTILE_UNROLL
      for (int half = 0; half < 2; ++half) {
        sum[m][half] += shuffle_xor(sum[m][half], 1);
        sum[m][half] += shuffle_xor(sum[m][half], 2);
      }
    }
  }

  /// False where a result may have overflowed, or holds what is not finite for another reason.
  template <int kTilesV>
  FLASHTILE_DEVICE bool is_in_range(const float (&acc)[kTilesM][kTilesV][4]) const {
    bool is_good = true;
    // 0 times a finite number is 0, times any other it is NaN. Four chains, each short.
    float probes[4] = {};
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      is_good = is_good && sum[m][0] < kLargestSum && sum[m][1] < kLargestSum;
      FLASHTILE_UNROLL
      for (int v = 0; v < kTilesV; ++v) {
        FLASHTILE_UNROLL
        for (int r = 0; r < 4; ++r) probes[r] = fused_multiply_add(acc[m][v][r], 0.0f, probes[r]);
      }
    }
    return is_good && (probes[0] + probes[1]) + (probes[2] + probes[3]) == 0.0f;
  }
};

}  // namespace flashtile::device
