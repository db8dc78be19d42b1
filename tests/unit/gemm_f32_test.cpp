// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "unit/simd_guarded.hpp"
#include "unit/simd_table.hpp"

namespace flashtile::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class GemmF32 : public ::testing::TestWithParam<const SimdTable*> {
 protected:
  const SimdTable& table() const { return *GetParam(); }
  int64_t padded(int64_t n) const { return table().padded(n); }

  void fill(float* x, int64_t count) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int64_t i = 0; i < count; ++i) x[i] = uniform(random_);
  }

  std::mt19937 random_{3};
};

// The product in double, with the size of its terms as a yardstick for the error.
void check_product(const SimdTable::Product& x, const std::vector<float>& old_c) {
  const float* a = static_cast<const float*>(x.a);
  const float* b = static_cast<const float*>(x.b);
  for (int64_t i = 0; i < x.m; ++i) {
    for (int64_t j = 0; j < x.n; ++j) {
      double sum = 0;
      double size = 0;
      for (int64_t p = 0; p < x.k; ++p) {
        const double term = double{a[i * x.row_stride + p * x.col_stride]} * b[p * x.ldb + j];
        sum += term * x.alpha;
        size += std::fabs(term * x.alpha);
      }
      if (x.accumulate) {
        const double old = double{old_c[static_cast<size_t>(i * x.ldc + j)]} *
                           (x.row_scale == nullptr ? 1.0 : double{x.row_scale[i]});
        sum += old;
        size += std::fabs(old);
      }
      if (x.addend != nullptr) {
        const double other = x.addend[i * x.addend_row_stride + j];
        sum += other;
        size += std::fabs(other);
      }
      const double tolerance = 0x1p-23 * size * (2 + std::sqrt(static_cast<double>(x.k)));
      ASSERT_NEAR(x.c[i * x.ldc + j], sum, tolerance)
          << "m" << x.m << " n" << x.n << " k" << x.k << " at " << i << ", " << j;
    }
  }
}

TEST_P(GemmF32, EveryTailOfRowsAndColumns) {
  for (int64_t m = 0; m <= 27; ++m) {
    for (int64_t n = 0; n <= 5 * table().lanes; n += n < 3 ? 1 : table().lanes / 2 + 1) {
      const int64_t k = (m * 7 + n) % 19;
      const int64_t ld = padded(n);
      Guarded<float> a(m * k);
      Guarded<float> b(k * ld);
      Guarded<float> c(m * ld);
      fill(a.data(), m * k);
      fill(b.data(), k * ld);
      std::fill(c.begin(), c.end(), kNan);  // not read without `accumulate`
      const SimdTable::Product product{m, n, k, a.data(), k, 1, b.data(), ld, c.data(), ld};
      table().gemm(product);
      check_product(product, {});
    }
  }
}

TEST_P(GemmF32, StridesOfAAreFree) {
  constexpr int64_t kM = 13;
  constexpr int64_t kN = 21;
  constexpr int64_t kK = 17;
  const int64_t ld = padded(kN) + 16;
  std::vector<float> a(2000);
  std::vector<float> b(static_cast<size_t>(kK * ld));
  std::vector<float> c(static_cast<size_t>(kM * ld));
  fill(a.data(), 2000);
  fill(b.data(), kK * ld);
  const int64_t strides[][2] = {{kK, 1}, {1, kM}, {kK + 9, 2}, {0, 1}, {-kK, 1}, {3, -50}};
  for (const auto& [row_stride, col_stride] : strides) {
    const SimdTable::Product product{kM,         kN,       kK, a.data() + 1000, row_stride,
                                     col_stride, b.data(), ld, c.data(),        ld};
    table().gemm(product);
    check_product(product, {});
  }
}

TEST_P(GemmF32, AlphaAccumulateAndRowScale) {
  constexpr int64_t kM = 11;
  constexpr int64_t kN = 70;
  constexpr int64_t kK = 9;
  const int64_t ld = padded(kN);
  std::vector<float> a(kM * kK);
  std::vector<float> b(static_cast<size_t>(kK * ld));
  std::vector<float> row_scale(kM);
  fill(a.data(), kM * kK);
  fill(b.data(), kK * ld);
  fill(row_scale.data(), kM);
  for (const float alpha : {1.0f, -0.37f, 0.0f}) {
    for (const bool accumulate : {false, true}) {
      for (const bool scaled : {false, true}) {
        std::vector<float> c(static_cast<size_t>(kM * ld), kNan);
        if (accumulate) fill(c.data(), kM * ld);
        const std::vector<float> old_c = c;
        SimdTable::Product product{kM, kN, kK, a.data(), kK, 1, b.data(), ld, c.data(), ld};
        product.alpha = alpha;
        product.accumulate = accumulate;
        product.row_scale = scaled ? row_scale.data() : nullptr;
        table().gemm(product);
        check_product(product, old_c);
      }
    }
  }
}

TEST_P(GemmF32, RowsOfAnAddendMayOverlap) {
  constexpr int64_t kM = 13;
  constexpr int64_t kN = 70;
  constexpr int64_t kK = 9;
  const int64_t ld = padded(kN);
  std::vector<float> a(kM * kK);
  std::vector<float> b(static_cast<size_t>(kK * ld));
  std::vector<float> addend(static_cast<size_t>(kM * ld));
  fill(a.data(), kM * kK);
  fill(b.data(), kK * ld);
  fill(addend.data(), kM * ld);
  for (const int64_t stride : {int64_t{-1}, int64_t{0}, int64_t{1}, ld}) {
    std::vector<float> c(static_cast<size_t>(kM * ld), kNan);
    SimdTable::Product product{kM, kN, kK, a.data(), kK, 1, b.data(), ld, c.data(), ld};
    product.alpha = -0.37f;
    product.addend = addend.data() + (stride < 0 ? kM : 0);
    product.addend_row_stride = stride;
    table().gemm(product);
    check_product(product, {});
  }
}

TEST_P(GemmF32, RowsPastTheEndAndColumnsPastThePaddingAreUntouched) {
  constexpr int64_t kM = 7;
  constexpr int64_t kN = 37;
  constexpr int64_t kK = 5;
  const int64_t ldb = padded(kN);
  const int64_t ldc = padded(kN) + 3;
  std::vector<float> a(kM * kK, 1.0f);
  std::vector<float> b(static_cast<size_t>(kK * ldb), 1.0f);
  std::vector<float> c(static_cast<size_t>((kM + 2) * ldc), 99.0f);
  table().gemm({kM, kN, kK, a.data(), kK, 1, b.data(), ldb, c.data(), ldc});
  for (int64_t i = 0; i < kM + 2; ++i) {
    for (int64_t j = 0; j < ldc; ++j) {
      const bool inside = i < kM && j < padded(kN);
      EXPECT_EQ(c[static_cast<size_t>(i * ldc + j)], inside ? 5.0f : 99.0f) << i << " " << j;
    }
  }
}

TEST_P(GemmF32, AnElementDoesNotDependOnItsTile) {
  constexpr int64_t kM = 40;
  constexpr int64_t kN = 200;
  constexpr int64_t kK = 33;
  const int64_t ld = padded(kN);
  std::vector<float> a(kM * kK);
  std::vector<float> b(static_cast<size_t>(kK * ld));
  fill(a.data(), kM * kK);
  fill(b.data(), kK * ld);
  std::vector<float> whole(static_cast<size_t>(kM * ld));
  table().gemm({kM, kN, kK, a.data(), kK, 1, b.data(), ld, whole.data(), ld, 0.7f});
  for (const int64_t rows : {1, 2, 3, 5, 7, 9, 13}) {
    const int64_t columns = table().lanes * (1 + rows % 5);
    std::vector<float> parts(whole.size());
    for (int64_t i = 0; i < kM; i += rows) {
      for (int64_t j = 0; j < kN; j += columns) {
        table().gemm({std::min(rows, kM - i), std::min(columns, kN - j), kK, a.data() + i * kK, kK,
                      1, b.data() + j, ld, parts.data() + i * ld + j, ld, 0.7f});
      }
    }
    EXPECT_EQ(parts, whole) << rows;
  }
}

TEST_P(GemmF32, FetchesRowsBesideTheSameResult) {
  constexpr int64_t kM = 25;
  constexpr int64_t kK = 33;
  const int64_t n = 8 * table().lanes;
  std::vector<float> a(kM * kK);
  std::vector<float> b(static_cast<size_t>(kK * n));
  fill(a.data(), kM * kK);
  fill(b.data(), kK * n);
  std::vector<float> plain(static_cast<size_t>(kM * n));
  table().gemm({kM, n, kK, a.data(), kK, 1, b.data(), n, plain.data(), n, 0.7f});
  const std::vector<char> rows(100000);
  for (const int64_t period : {int64_t{1}, int64_t{16}, int64_t{33}, INT64_MAX / 2}) {
    for (const auto& [num_rows, bytes] : {std::pair{1, 65536}, {40, 130}, {3, 1}, {0, 64}}) {
      std::vector<float> c(plain.size());
      const SimdTable::Product product{kM, n, kK, a.data(), kK, 1, b.data(), n, c.data(), n, 0.7f};
      EXPECT_EQ(table().gemm_fetching(product, rows.data(), bytes + 70, num_rows, bytes, period), 0)
          << period << ": " << num_rows << " of " << bytes;
      EXPECT_EQ(c, plain) << period;
    }
  }
}

TEST_P(GemmF32, NanSpreadsOnlyAlongItsRowAndColumn) {
  constexpr int64_t kM = 9;
  constexpr int64_t kN = 35;
  constexpr int64_t kK = 8;
  const int64_t ld = padded(kN);
  std::vector<float> a(kM * kK, 1.0f);
  std::vector<float> b(static_cast<size_t>(kK * ld), 1.0f);
  std::vector<float> c(static_cast<size_t>(kM * ld));
  a[3 * kK + 2] = kNan;
  b[static_cast<size_t>(5 * ld + 17)] = kNan;
  table().gemm({kM, kN, kK, a.data(), kK, 1, b.data(), ld, c.data(), ld});
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      EXPECT_EQ(std::isnan(c[static_cast<size_t>(i * ld + j)]), i == 3 || j == 17);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, GemmF32, ::testing::ValuesIn(simd_tables()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace flashtile::testing
