// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace flashtile::testing {

/// A small floating format by its definition: `exponent_bits`, then `mantissa_bits`, as in IEEE
/// 754.
struct SmallFloat {
  int exponent_bits;
  int mantissa_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }

  /// The value of a bit pattern.
  double value(uint16_t bits) const {
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const double sign = bits >> 15 != 0 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) {
      return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                           : std::numeric_limits<double>::quiet_NaN();
    }
    const int shift = (exponent == 0 ? 1 : exponent) - bias() - mantissa_bits;
    const int hidden = exponent == 0 ? 0 : 1 << mantissa_bits;
    return sign * std::ldexp(hidden + mantissa, shift);
  }

  /// The pattern nearest to a number that is not NaN: by bisection over the patterns, which are in
  /// the order of their values; ties to even; what is past the largest by half a place is infinite.
  uint16_t nearest(double x) const {
    const double size = std::fabs(x);
    uint16_t low = 0;
    uint16_t high = static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
    while (high - low > 1) {
      const uint16_t middle = static_cast<uint16_t>((low + high) / 2);
      (value(middle) <= size ? low : high) = middle;
    }
    // Infinity stands where the next power of two would.
    const double above = std::isinf(value(high)) ? std::ldexp(1.0, bias() + 1) : value(high);
    const double down = size - value(low);
    const double up = above - size;
    const bool take_high = up < down || (up == down && low % 2 == 1);
    const uint16_t pattern = take_high ? high : low;
    return static_cast<uint16_t>(pattern | (std::signbit(x) ? 0x8000 : 0));
  }
};

inline constexpr SmallFloat kHalf{5, 10};
inline constexpr SmallFloat kBfloat16{8, 7};

}  // namespace flashtile::testing
