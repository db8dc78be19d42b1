// SPDX-License-Identifier: Apache-2.0
#include "core/float8.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "core/float_mode.hpp"

namespace flashtile {
namespace {

/// OFP8's definition: (-1)^s 2^(e - 7) (1 + m / 8), and 2^-6 m / 8 where e is 0.
double defined(int bits) {
  const int exponent = bits >> 3 & 15;
  const double mantissa = (bits & 7) / 8.0;
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -6) : std::ldexp(1 + mantissa, exponent - 7);
  return (bits & 0x80) != 0 ? -size : size;
}

TEST(E4m3, IsWhatItIsDefinedToBe) {
  for (int bits = 0; bits < 256; ++bits) {
    const auto code = static_cast<uint8_t>(bits);
    if ((bits & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(e4m3_to_float(code)));
      continue;
    }
    EXPECT_EQ(static_cast<double>(e4m3_to_float(code)), defined(bits)) << bits;
    EXPECT_EQ(double_to_e4m3(defined(bits)), code) << bits;
  }
}

TEST(E4m3, IsThatInKernelsToo) {
  const KernelFloatMode mode;
  for (int bits = 0; bits < 0x7f; ++bits) {
    EXPECT_EQ(static_cast<double>(e4m3_to_float(static_cast<uint8_t>(bits))), defined(bits));
  }
}

TEST(E4m3, RoundsToTheNearestWithTiesToEven) {
  for (int bits = 0; bits < 0x7e; ++bits) {
    const double low = defined(bits), high = defined(bits + 1), middle = (low + high) / 2;
    EXPECT_EQ(double_to_e4m3(std::nextafter(middle, 0)), bits);
    EXPECT_EQ(double_to_e4m3(std::nextafter(middle, high)), bits + 1);
    EXPECT_EQ(double_to_e4m3(-middle), 0x80 | (bits % 2 == 0 ? bits : bits + 1));
  }
}

TEST(E4m3, SaturatesAndKeepsNan) {
  EXPECT_EQ(double_to_e4m3(1e300), 0x7e);
  EXPECT_EQ(double_to_e4m3(-std::numeric_limits<double>::infinity()), 0xfe);
  EXPECT_TRUE(std::isnan(e4m3_to_float(double_to_e4m3(std::numeric_limits<double>::quiet_NaN()))));
}

}  // namespace
}  // namespace flashtile
