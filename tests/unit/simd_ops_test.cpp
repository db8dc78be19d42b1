// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "unit/simd_table.hpp"

namespace flashtile::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class SimdOps : public ::testing::TestWithParam<const SimdTable*> {
 protected:
  const SimdTable& table() const { return *GetParam(); }
  size_t lanes() const { return static_cast<size_t>(table().lanes); }
  uint32_t all_bits() const { return (uint32_t{1} << lanes()) - 1; }

  // Every pair of these values, one vector after another, in every position of a vector.
  template <typename F>
  void for_pairs(const std::vector<float>& values, F check) {
    for (size_t i = 0; i < values.size(); ++i) {
      std::vector<float> x(lanes(), values[i]);
      std::vector<float> y(lanes());
      for (size_t j = 0; j < values.size(); ++j) {
        for (size_t lane = 0; lane < lanes(); ++lane) y[lane] = values[(j + lane) % values.size()];
        check(x, y);
      }
    }
  }

  std::vector<float> unary(UnaryOp op, float x) {
    const std::vector<float> in(lanes(), x);
    std::vector<float> out(lanes());
    table().unary(op, in.data(), out.data());
    return out;
  }

  std::mt19937 random_{7};
};

const std::vector<float> kValues = {
    0.0f, -0.0f, 1.0f, -1.0f,  0.5f,  2.5f,        -2.5f, 3.5f, 1e-30f, 1e30f,      7.7f,
    kInf, -kInf, kNan, 1e-40f, -7.3f, 0.49999997f, -0.5f, 1.5f, -0.3f,  8388609.0f, -8388607.5f};

bool same(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

TEST_P(SimdOps, ArithmeticMatchesScalarCode) {
  const auto check = [this](BinaryOp op, auto scalar) {
    for_pairs(kValues, [&](const std::vector<float>& x, const std::vector<float>& y) {
      std::vector<float> z(lanes());
      table().binary(op, x.data(), y.data(), z.data());
      for (size_t i = 0; i < lanes(); ++i) {
        EXPECT_TRUE(same(z[i], scalar(x[i], y[i])))
            << "op " << static_cast<int>(op) << " of " << x[i] << " and " << y[i] << " is " << z[i];
      }
    });
  };
  check(BinaryOp::kAdd, [](float a, float b) { return a + b; });
  check(BinaryOp::kSub, [](float a, float b) { return a - b; });
  check(BinaryOp::kMul, [](float a, float b) { return a * b; });
  check(BinaryOp::kDiv, [](float a, float b) { return a / b; });
}

TEST_P(SimdOps, MinAndMaxKeepANanInTheSecondPlaceOnly) {
  for_pairs(kValues, [this](const std::vector<float>& x, const std::vector<float>& y) {
    std::vector<float> low(lanes());
    std::vector<float> high(lanes());
    table().binary(BinaryOp::kMin, x.data(), y.data(), low.data());
    table().binary(BinaryOp::kMax, x.data(), y.data(), high.data());
    for (size_t i = 0; i < lanes(); ++i) {
      EXPECT_TRUE(same(low[i], x[i] < y[i] ? x[i] : y[i])) << x[i] << " " << y[i];
      EXPECT_TRUE(same(high[i], x[i] > y[i] ? x[i] : y[i])) << x[i] << " " << y[i];
    }
  });
}

TEST_P(SimdOps, ComparisonsMatchScalarCode) {
  const auto check = [this](CompareOp op, auto scalar) {
    for_pairs(kValues, [&](const std::vector<float>& x, const std::vector<float>& y) {
      uint32_t expected = 0;
      for (size_t i = 0; i < lanes(); ++i) expected |= uint32_t{scalar(x[i], y[i])} << i;
      EXPECT_EQ(table().compare(op, x.data(), y.data()), expected) << static_cast<int>(op);
    });
  };
  check(CompareOp::kLt, [](float a, float b) { return a < b; });
  check(CompareOp::kLe, [](float a, float b) { return a <= b; });
  check(CompareOp::kGt, [](float a, float b) { return a > b; });
  check(CompareOp::kGe, [](float a, float b) { return a >= b; });
  check(CompareOp::kEq, [](float a, float b) { return a == b; });
  check(CompareOp::kNe, [](float a, float b) { return a != b; });
}

TEST_P(SimdOps, ExactUnaryOpsMatchScalarCode) {
  for (const float x : kValues) {
    for (size_t i = 0; i < lanes(); ++i) {
      EXPECT_TRUE(same(unary(UnaryOp::kNeg, x)[i], -x)) << x;
      EXPECT_TRUE(same(unary(UnaryOp::kAbs, x)[i], std::fabs(x))) << x;
      EXPECT_TRUE(same(unary(UnaryOp::kSqrt, x)[i], std::sqrt(x))) << x;
      EXPECT_EQ(unary(UnaryOp::kRound, std::isnan(x) ? 0 : x)[i],
                std::nearbyint(std::isnan(x) ? 0 : x));
      EXPECT_EQ(unary(UnaryOp::kFloor, std::isnan(x) ? 0 : x)[i],
                std::floor(std::isnan(x) ? 0 : x));
    }
  }
  EXPECT_TRUE(std::isnan(unary(UnaryOp::kRound, kNan)[0]));
  EXPECT_TRUE(std::isnan(unary(UnaryOp::kFloor, kNan)[0]));
}

TEST_P(SimdOps, FmaIsTheSumAndFnmaTheDifference) {
  std::uniform_int_distribution<int> whole(-1000, 1000);  // exact in either rounding
  for (int round = 0; round < 100; ++round) {
    std::vector<float> a(lanes()), b(lanes()), c(lanes()), sum(lanes()), difference(lanes());
    for (size_t i = 0; i < lanes(); ++i) {
      a[i] = static_cast<float>(whole(random_));
      b[i] = static_cast<float>(whole(random_));
      c[i] = static_cast<float>(whole(random_));
    }
    table().fma(a.data(), b.data(), c.data(), sum.data(), difference.data());
    for (size_t i = 0; i < lanes(); ++i) {
      EXPECT_EQ(sum[i], a[i] * b[i] + c[i]);
      EXPECT_EQ(difference[i], c[i] - a[i] * b[i]);
    }
  }
}

TEST_P(SimdOps, ScalePow2CoversItsWholeRange) {
  for (int n = -125; n <= 128; ++n) {
    const std::vector<float> x(lanes(), 0.75f);
    const std::vector<float> power(lanes(), static_cast<float>(n));
    std::vector<float> y(lanes());
    table().scale_pow2(x.data(), power.data(), y.data());
    EXPECT_EQ(y[0], std::ldexp(0.75f, n)) << n;
    EXPECT_EQ(y[lanes() - 1], std::ldexp(0.75f, n)) << n;
  }
}

TEST_P(SimdOps, FirstLanesClampsItsCount) {
  for (int64_t count = -3; count < 40; ++count) {
    const int64_t n = std::min<int64_t>(std::max<int64_t>(count, 0), table().lanes);
    EXPECT_EQ(table().first_lanes(count), static_cast<uint32_t>((uint64_t{1} << n) - 1));
  }
  EXPECT_EQ(table().first_lanes(std::numeric_limits<int64_t>::max()), all_bits());
  EXPECT_EQ(table().first_lanes(std::numeric_limits<int64_t>::min()), 0u);
}

TEST_P(SimdOps, SelectTakesFromBoth) {
  std::vector<float> x(lanes()), y(lanes()), out(lanes());
  std::iota(x.begin(), x.end(), 1.0f);
  std::iota(y.begin(), y.end(), 101.0f);
  y[0] = kNan;
  for (size_t count = 0; count <= lanes(); ++count) {
    table().select(static_cast<int64_t>(count), x.data(), y.data(), out.data());
    for (size_t i = 0; i < lanes(); ++i) EXPECT_TRUE(same(out[i], i < count ? x[i] : y[i])) << i;
  }
}

TEST_P(SimdOps, ReductionsSeeEveryLane) {
  std::vector<float> x(lanes());
  std::iota(x.begin(), x.end(), 1.0f);
  EXPECT_EQ(table().reduce_add(x.data()), static_cast<float>(lanes() * (lanes() + 1) / 2));
  for (size_t i = 0; i < lanes(); ++i) {
    std::vector<float> y(lanes(), -5.0f);
    y[i] = -4.0f;
    EXPECT_EQ(table().reduce_max(y.data()), -4.0f) << i;
    y[i] = kNan;
    EXPECT_TRUE(std::isnan(table().reduce_add(y.data()))) << i;
  }
}

TEST_P(SimdOps, IntegersMatchScalarCode) {
  std::uniform_int_distribution<uint32_t> word;
  for (int round = 0; round < 200; ++round) {
    std::vector<uint32_t> x(lanes()), y(lanes()), z(lanes());
    for (size_t i = 0; i < lanes(); ++i) {
      x[i] = word(random_);
      y[i] = word(random_) % 3 == 0 ? x[i] : word(random_);
    }
    const auto check = [&](IntOp op, auto scalar) {
      table().integer(op, x.data(), y.data(), z.data());
      for (size_t i = 0; i < lanes(); ++i) {
        EXPECT_EQ(z[i], static_cast<uint32_t>(scalar(uint64_t{x[i]}, uint64_t{y[i]})));
      }
    };
    check(IntOp::kAdd, [](uint64_t a, uint64_t b) { return a + b; });
    check(IntOp::kSub, [](uint64_t a, uint64_t b) { return a - b; });
    check(IntOp::kXor, [](uint64_t a, uint64_t b) { return a ^ b; });
    check(IntOp::kAnd, [](uint64_t a, uint64_t b) { return a & b; });
    check(IntOp::kOr, [](uint64_t a, uint64_t b) { return a | b; });
    check(IntOp::kMulLo, [](uint64_t a, uint64_t b) { return a * b; });
    check(IntOp::kMulHi, [](uint64_t a, uint64_t b) { return (a * b) >> 32; });

    uint32_t less = 0;
    uint32_t equal = 0;
    for (size_t i = 0; i < lanes(); ++i) {
      less |= uint32_t{static_cast<int32_t>(x[i]) < static_cast<int32_t>(y[i])} << i;
      equal |= uint32_t{x[i] == y[i]} << i;
    }
    EXPECT_EQ(table().less_i32(x.data(), y.data()), less);
    EXPECT_EQ(table().equal_u(x.data(), y.data()), equal);

    const int left = round % 32;
    const int right = (round / 32) % 32;
    table().shift(x.data(), left, right, z.data());
    for (size_t i = 0; i < lanes(); ++i) EXPECT_EQ(z[i], (x[i] << left) >> right);
  }
}

TEST_P(SimdOps, ConversionsBetweenIntegersAndFloats) {
  for (const float x : {0.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 1e9f, -1e9f, 3.4999f}) {
    const std::vector<float> in(lanes(), x);
    std::vector<uint32_t> rounded(lanes());
    table().round_to_i32(in.data(), rounded.data());
    EXPECT_EQ(static_cast<int32_t>(rounded[0]), static_cast<int32_t>(std::nearbyint(x))) << x;
    std::vector<float> back(lanes());
    table().i32_to_float(rounded.data(), back.data());
    EXPECT_EQ(back[lanes() - 1], std::nearbyint(x)) << x;
  }
}

TEST_P(SimdOps, TransposeSwapsRowsAndLanes) {
  std::vector<uint32_t> x(lanes() * lanes()), y(lanes() * lanes());
  std::iota(x.begin(), x.end(), 0u);
  table().transpose(x.data(), y.data());
  for (size_t i = 0; i < lanes(); ++i) {
    for (size_t j = 0; j < lanes(); ++j) EXPECT_EQ(y[j * lanes() + i], x[i * lanes() + j]);
  }
}

TEST_P(SimdOps, GroupsOfFourGoAStrideApart) {
  constexpr size_t kStride = 7;
  constexpr uint32_t kUntouched = 0xFFFF;
  std::vector<uint32_t> x(lanes());
  std::iota(x.begin(), x.end(), 0u);
  std::vector<uint32_t> y(kStride * lanes() / 4, kUntouched);
  table().store_u_groups(x.data(), y.data(), kStride);
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t within = i % kStride;
    EXPECT_EQ(y[i], within < 4 ? i / kStride * 4 + within : kUntouched) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, SimdOps, ::testing::ValuesIn(simd_tables()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace flashtile::testing
