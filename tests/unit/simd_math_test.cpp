// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "unit/simd_table.hpp"

namespace flashtile::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class SimdMath : public ::testing::TestWithParam<const SimdTable*> {
 protected:
  float value(UnaryOp op, float x) const {
    std::vector<float> in(static_cast<size_t>(GetParam()->lanes), x);
    std::vector<float> out(in.size());
    GetParam()->unary(op, in.data(), out.data());
    return out.back();
  }

  // The worst relative error against the C library in double, over a sample of all floats in
  // [low, high] by their bits, and so of every binade.
  double worst(UnaryOp op, const std::function<double(double)>& exact, float low, float high,
               uint32_t step = 30011) const {
    const size_t lanes = static_cast<size_t>(GetParam()->lanes);
    std::vector<float> x;
    double worst = 0;
    const auto flush = [&] {
      std::vector<float> y(x.size());
      GetParam()->unary(op, x.data(), y.data());
      for (size_t i = 0; i < x.size(); ++i) {
        const double expected = exact(x[i]);
        const double error = std::fabs(y[i] - expected) / std::fabs(expected);
        if (expected != 0 && !(error <= worst)) worst = error;
      }
      x.clear();
    };
    for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += step) {
      const float value = std::bit_cast<float>(static_cast<uint32_t>(bits));
      if (!(value >= low && value <= high)) continue;
      x.push_back(value);
      if (x.size() == lanes) flush();
    }
    return worst;
  }
};

TEST_P(SimdMath, ErrorsAreNearOneUnit) {
  const auto exp = [](double x) { return std::exp(x); };
  const auto exp2 = [](double x) { return std::exp2(x); };
  EXPECT_LT(worst(UnaryOp::kExp, exp, -86.9f, 88.72f), 1.5e-7);
  EXPECT_LT(worst(UnaryOp::kExp2, exp2, -125.4f, 127.999f), 1.5e-7);
  EXPECT_LT(worst(UnaryOp::kExp2Fast, exp2, -125.4f, 127.999f), 4e-6);
  EXPECT_LT(worst(
                UnaryOp::kLog, [](double x) { return std::log(x); }, 0x1p-149f, 3.4e38f),
            2e-7);
  EXPECT_LT(worst(
                UnaryOp::kLog2, [](double x) { return std::log2(x); }, 0x1p-149f, 3.4e38f),
            2e-7);
  EXPECT_LT(worst(
                UnaryOp::kTanh, [](double x) { return std::tanh(x); }, -50.0f, 50.0f),
            2e-7);
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_LT(worst(UnaryOp::kSigmoid, sigmoid, -86.0f, 50.0f), 2.5e-7);
}

TEST_P(SimdMath, ExponentialsAtTheirEnds) {
  for (const UnaryOp op : {UnaryOp::kExp, UnaryOp::kExp2, UnaryOp::kExp2Fast}) {
    EXPECT_EQ(value(op, 0.0f), 1.0f);
    EXPECT_EQ(value(op, -0.0f), 1.0f);
    EXPECT_EQ(value(op, -kInf), 0.0f);
    EXPECT_EQ(value(op, -1e30f), 0.0f);
    EXPECT_EQ(value(op, -150.0f), 0.0f);
    EXPECT_EQ(value(op, kInf), kInf);
    EXPECT_EQ(value(op, 1e30f), kInf);
    EXPECT_EQ(value(op, 129.0f), kInf);
    EXPECT_TRUE(std::isnan(value(op, kNan)));
  }
  EXPECT_EQ(value(UnaryOp::kExp, 88.73f), kInf);
  EXPECT_TRUE(std::isfinite(value(UnaryOp::kExp, 88.72f)));
  EXPECT_EQ(value(UnaryOp::kExp2, 128.0f), kInf);
  EXPECT_TRUE(std::isfinite(value(UnaryOp::kExp2, 127.99999f)));
  for (int n = -125; n < 128; ++n) {
    EXPECT_EQ(value(UnaryOp::kExp2, static_cast<float>(n)), std::ldexp(1.0f, n)) << n;
  }
}

TEST_P(SimdMath, ExponentialsNeverExceedTheirLimitsNearZeroResults) {
  // Between the last normal result and 0 a value may be flushed, but it is never negative or large.
  for (float x = -160.0f; x < -120.0f; x += 0.01f) {
    EXPECT_GE(value(UnaryOp::kExp2, x), 0.0f) << x;
    EXPECT_LE(value(UnaryOp::kExp2, x), std::exp2(x) * 1.000001f + 0x1p-149f) << x;
  }
  for (float x = -110.0f; x < -85.0f; x += 0.01f) {
    EXPECT_GE(value(UnaryOp::kExp, x), 0.0f) << x;
    EXPECT_LE(value(UnaryOp::kExp, x), std::exp(x) * 1.000001f + 0x1p-149f) << x;
  }
}

TEST_P(SimdMath, LogarithmsAtTheirEnds) {
  for (const UnaryOp op : {UnaryOp::kLog, UnaryOp::kLog2}) {
    EXPECT_EQ(value(op, 1.0f), 0.0f);
    EXPECT_EQ(value(op, 0.0f), -kInf);
    EXPECT_EQ(value(op, -0.0f), -kInf);
    EXPECT_EQ(value(op, kInf), kInf);
    EXPECT_TRUE(std::isnan(value(op, -1.0f)));
    EXPECT_TRUE(std::isnan(value(op, -kInf)));
    EXPECT_TRUE(std::isnan(value(op, kNan)));
  }
  for (int n = -149; n < 128; ++n) {
    EXPECT_EQ(value(UnaryOp::kLog2, std::ldexp(1.0f, n)), static_cast<float>(n)) << n;
  }
}

TEST_P(SimdMath, SaturatingFunctionsAtTheirEnds) {
  EXPECT_EQ(value(UnaryOp::kTanh, 0.0f), 0.0f);
  EXPECT_EQ(value(UnaryOp::kTanh, kInf), 1.0f);
  EXPECT_EQ(value(UnaryOp::kTanh, -kInf), -1.0f);
  EXPECT_EQ(value(UnaryOp::kTanh, 1e30f), 1.0f);
  EXPECT_TRUE(std::isnan(value(UnaryOp::kTanh, kNan)));
  EXPECT_EQ(value(UnaryOp::kSigmoid, 0.0f), 0.5f);
  EXPECT_EQ(value(UnaryOp::kSigmoid, kInf), 1.0f);
  EXPECT_EQ(value(UnaryOp::kSigmoid, -kInf), 0.0f);
  EXPECT_TRUE(std::isnan(value(UnaryOp::kSigmoid, kNan)));
}

INSTANTIATE_TEST_SUITE_P(Isa, SimdMath, ::testing::ValuesIn(simd_tables()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace flashtile::testing
