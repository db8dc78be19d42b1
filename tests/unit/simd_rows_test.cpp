// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "unit/simd_float_bits.hpp"
#include "unit/simd_guarded.hpp"
#include "unit/simd_table.hpp"

namespace flashtile::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class SimdRows : public ::testing::TestWithParam<const SimdTable*> {
 protected:
  const SimdTable& table() const { return *GetParam(); }

  // Calls check(row, n) for many lengths, with a row of padded(n) random scores and a NaN in the
  // padding.
  template <typename F>
  void for_lengths(F check) {
    std::normal_distribution<float> normal(0, 3);
    for (int64_t n = 0; n < 6 * table().lanes; n += n < 20 ? 1 : 7) {
      Guarded<float> row(table().padded(n));
      for (int64_t j = 0; j < table().padded(n); ++j) row[j] = j < n ? normal(random_) : kNan;
      check(row, n);
    }
  }

  std::mt19937 random_{9};
};

TEST_P(SimdRows, MaximumSeesEveryColumnAndNoNan) {
  for_lengths([this](Guarded<float>& row, int64_t n) {
    EXPECT_EQ(table().row_max_of(row.data(), n, 1000.0f), 1000.0f);
    for (int64_t j = 0; j < n; ++j) {
      row[j] += 100.0f;
      EXPECT_EQ(table().row_max_of(row.data(), n, -kInf), row[j]);
      row[j] = kNan;
    }
    EXPECT_EQ(table().row_max_of(row.data(), n, -kInf), -kInf);  // nothing but NaN
  });
}

TEST_P(SimdRows, ReferenceOfAnEmptyRowIsZero) {
  EXPECT_EQ(table().softmax_reference(-kInf), 0.0f);
  EXPECT_EQ(table().softmax_reference(-3.5f), -3.5f);
  EXPECT_EQ(table().softmax_reference(kInf), kInf);
}

TEST_P(SimdRows, ExponentialsAndTheirSum) {
  for_lengths([this](Guarded<float>& row, int64_t n) {
    if (n > 2) row[1] = -kInf;
    Guarded<float> e(table().padded(n));
    Guarded<float> two(table().padded(n));
    const float sum_e = table().exp_row(row.data(), n, 1.5f, e.data());
    const float sum_two = table().exp2_row(row.data(), n, 1.5f, two.data());
    double expected_e = 0;
    double expected_two = 0;
    for (int64_t j = 0; j < table().padded(n); ++j) {
      if (j >= n) {
        EXPECT_EQ(e[j], 0.0f);
        EXPECT_EQ(two[j], 0.0f);
        continue;
      }
      const double x = double{row[j] - 1.5f};
      EXPECT_NEAR(e[j], std::exp(x), 2e-7 * std::exp(x));
      EXPECT_NEAR(two[j], std::exp2(x), 2e-7 * std::exp2(x));
      expected_e += std::exp(x);
      expected_two += std::exp2(x);
    }
    EXPECT_NEAR(sum_e, expected_e, 1e-6 * expected_e);
    EXPECT_NEAR(sum_two, expected_two, 1e-6 * expected_two);

    // In place, and rounded to bfloat16 with the same sum.
    std::vector<cpu::Bf16> rounded(static_cast<size_t>(table().padded(n)));
    EXPECT_EQ(table().exp2_row_bf16(row.data(), n, 1.5f, rounded.data()), sum_two);
    EXPECT_EQ(table().exp2_row(row.data(), n, 1.5f, row.data()), sum_two);
    for (int64_t j = 0; j < table().padded(n); ++j) {
      EXPECT_EQ(row[j], two[j]);
      EXPECT_EQ(rounded[static_cast<size_t>(j)].bits, kBfloat16.nearest(two[j]));
    }
  });
}

TEST_P(SimdRows, LanesAddUpToTheSumAndTheMaximum) {
  for_lengths([this](Guarded<float>& row, int64_t n) {
    if (n > 2) row[1] = -kInf;
    Guarded<float> expected(table().padded(n));
    Guarded<float> weights(table().padded(n));
    const float sum = table().exp2_row(row.data(), n, 1.5f, expected.data());
    float top = kNan;
    EXPECT_EQ(table().exp2_row_lanes(row.data(), n, 1.5f, weights.data(), &top), sum);
    EXPECT_EQ(top, table().row_max_of(row.data(), n, -kInf));
    for (int64_t j = 0; j < table().padded(n); ++j) EXPECT_EQ(weights[j], expected[j]);

    if (n == 0) return;
    row[n - 1] = kNan;  // reaches the sum, not the maximum
    EXPECT_TRUE(std::isnan(table().exp2_row_lanes(row.data(), n, 1.5f, weights.data(), &top)));
    EXPECT_EQ(top, table().row_max_of(row.data(), n, -kInf));
  });
}

TEST_P(SimdRows, WeightsAndTheirGradientInOnePass) {
  for_lengths([this](Guarded<float>& row, int64_t n) {
    Guarded<float> dp(table().padded(n));
    for (int64_t j = 0; j < table().padded(n); ++j) {
      dp[j] = static_cast<float>(j % 5) - 1.7f;
      if (j % 4 == 1) row[j] = -kInf;
      if (j % 8 == 1) dp[j] = kInf;  // what no weight touches may be anything
    }
    Guarded<float> weights(table().padded(n));
    Guarded<float> gradient(table().padded(n));
    table().exp2_row(row.data(), n, 1.5f, weights.data());
    table().softmax_grad_row(weights.data(), dp.data(), n, 0.75f, gradient.data());
    table().exp2_grad_row(row.data(), dp.data(), n, 1.5f, 0.75f);
    for (int64_t j = 0; j < table().padded(n); ++j) {
      EXPECT_EQ(row[j], weights[j]) << j;
      EXPECT_EQ(dp[j], gradient[j]) << j;
    }
  });
}

TEST_P(SimdRows, AVisibleNanReachesTheSum) {
  for (int64_t at = 0; at < 3 * table().lanes; ++at) {
    std::vector<float> row(static_cast<size_t>(3 * table().lanes), 0.0f);
    row[static_cast<size_t>(at)] = kNan;
    EXPECT_TRUE(std::isnan(table().exp2_row(row.data(), 3 * table().lanes, 0.0f, row.data())));
    for (size_t j = 0; j < row.size(); ++j) {
      EXPECT_EQ(std::isnan(row[j]), j == static_cast<size_t>(at));
    }
  }
}

TEST_P(SimdRows, ScaleAndFillCoverThePadding) {
  for_lengths([this](Guarded<float>& row, int64_t n) {
    table().fill_row(row.data(), n, 3.0f);
    table().scale_row(row.data(), n, -0.5f);
    for (const float x : row) EXPECT_EQ(x, -1.5f);
  });
}

TEST_P(SimdRows, MaskOutsideARange) {
  const int64_t n = 3 * table().lanes - 1;
  for (int64_t begin = -2; begin < n + 4; ++begin) {
    for (int64_t end = -2; end < n + 4; end += 3) {
      Guarded<float> row(table().padded(n));
      std::fill(row.begin(), row.end(), 2.0f);
      table().mask_row_outside(row.data(), n, begin, end);
      for (int64_t j = 0; j < n; ++j) {
        EXPECT_EQ(row[j], j >= begin && j < end ? 2.0f : -kInf) << begin << " " << end << " " << j;
      }
    }
  }
}

TEST_P(SimdRows, MaskByBytes) {
  std::vector<uint8_t> keep(37);
  for (size_t j = 0; j < keep.size(); ++j) keep[j] = j % 3 == 0 ? uint8_t(j + 1) : uint8_t(0);
  Guarded<float> row(37);
  std::fill(row.begin(), row.end(), 2.0f);
  row[1] = kNan;  // masked: it does not come through
  table().mask_row_bytes(row.data(), 37, keep.data());
  for (int64_t j = 0; j < 37; ++j) EXPECT_EQ(row[j], j % 3 == 0 ? 2.0f : -kInf);
}

TEST_P(SimdRows, DotProduct) {
  for_lengths([this](Guarded<float>& row, int64_t n) {
    Guarded<float> other(n);
    double expected = 0;
    double size = 0;
    for (int64_t j = 0; j < n; ++j) {
      other[j] = static_cast<float>(j % 5) - 1.7f;
      expected += double{row[j]} * other[j];
      size += std::fabs(double{row[j]} * other[j]);
    }
    EXPECT_NEAR(table().row_dot(row.data(), other.data(), n), expected, 1e-6 * size);
  });
}

TEST_P(SimdRows, SoftmaxGradientIsZeroWhereTheWeightIs) {
  for_lengths([this](Guarded<float>& row, int64_t n) {
    Guarded<float> p(table().padded(n));
    for (int64_t j = 0; j < table().padded(n); ++j) {
      p[j] = j >= n || j % 4 == 1 ? 0.0f : 0.1f * static_cast<float>(j % 7);
      if (p[j] == 0.0f && j % 8 == 1) row[j] = kInf;  // what no weight touches may be anything
    }
    Guarded<float> ds(table().padded(n));
    table().softmax_grad_row(p.data(), row.data(), n, 0.75f, ds.data());
    for (int64_t j = 0; j < table().padded(n); ++j) {
      const double expected = p[j] == 0 ? 0.0 : p[j] * (double{row[j]} - 0.75);
      EXPECT_NEAR(ds[j], expected, 1e-6 * std::fabs(expected)) << j;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Isa, SimdRows, ::testing::ValuesIn(simd_tables()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace flashtile::testing
