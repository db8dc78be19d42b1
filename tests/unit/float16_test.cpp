// SPDX-License-Identifier: Apache-2.0
#include "core/float16.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace flashtile {
namespace {

// A 16-bit float of `exponent_bits` exponent bits, from the definition of the format.
double decode(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const double mantissa = std::ldexp(bits & ((1 << mantissa_bits) - 1), -mantissa_bits);
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias);
  return sign * std::ldexp(1 + mantissa, exponent - bias);
}

template <typename ToFloat, typename FromFloat>
void check_all(int exponent_bits, ToFloat to_float, FromFloat from_float) {
  for (uint32_t n = 0; n < 0x10000; ++n) {
    const auto bits = static_cast<uint16_t>(n);
    const double expected = decode(bits, exponent_bits);
    const float found = to_float(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(found)) << n;
      ASSERT_TRUE(std::isnan(to_float(from_float(found)))) << n;
      continue;
    }
    ASSERT_EQ(static_cast<double>(found), expected) << n;
    ASSERT_EQ(std::signbit(found), bits >> 15 != 0) << n;
    ASSERT_EQ(from_float(found), bits) << n;
  }
  // Everything between two neighbours goes to the nearer one, the middle to the even one.
  const uint16_t infinity =
      static_cast<uint16_t>(((1 << exponent_bits) - 1) << (15 - exponent_bits));
  for (uint32_t n = 0; n + 1u < infinity; ++n) {
    const auto low = static_cast<uint16_t>(n);
    const auto high = static_cast<uint16_t>(n + 1);
    const auto middle =
        static_cast<float>((decode(low, exponent_bits) + decode(high, exponent_bits)) / 2);
    if (static_cast<double>(middle) * 2 != decode(low, exponent_bits) + decode(high, exponent_bits))
      continue;  // below float32's own subnormals
    ASSERT_EQ(from_float(middle), n % 2 == 0 ? low : high) << n;
    ASSERT_EQ(from_float(std::nextafter(middle, -1.0f)), low) << n;
    ASSERT_EQ(from_float(std::nextafter(middle, INFINITY)), high) << n;
    ASSERT_EQ(from_float(-middle), 0x8000 | (n % 2 == 0 ? low : high)) << n;
  }
  const double largest = decode(static_cast<uint16_t>(infinity - 1), exponent_bits);
  const double half_ulp = largest - decode(static_cast<uint16_t>(infinity - 2), exponent_bits);
  const auto limit = static_cast<float>(largest + half_ulp / 2);
  ASSERT_EQ(from_float(limit), infinity);
  ASSERT_EQ(from_float(std::nextafter(limit, 0.0f)), infinity - 1);
  ASSERT_EQ(from_float(INFINITY), infinity);
}

TEST(Float16, HalfRoundsToNearestEven) { check_all(5, f16_to_float, float_to_f16); }

TEST(Float16, Bfloat16RoundsToNearestEven) { check_all(8, bf16_to_float, float_to_bf16); }

TEST(Float16, EveryNanStaysOneWithItsSign) {
  for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffc00000u, 0x7f801000u}) {
    const auto value = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(value)))) << bits;
    EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value)))) << bits;
    EXPECT_EQ(uint32_t{float_to_f16(value)} >> 15, bits >> 31);
    EXPECT_EQ(uint32_t{float_to_bf16(value)} >> 15, bits >> 31);
  }
}

static_assert(float_to_f16(65504.0f) == 0x7bff);
static_assert(float_to_bf16(1.0f) == 0x3f80);
static_assert(f16_to_float(0x0001) == 0x1p-24f);

}  // namespace
}  // namespace flashtile
