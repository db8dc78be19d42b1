// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "unit/simd_float_bits.hpp"
#include "unit/simd_guarded.hpp"
#include "unit/simd_table.hpp"

namespace flashtile::testing {
namespace {

using cpu::Bf16;

double value(Bf16 x) { return kBfloat16.value(x.bits); }

class GemmBf16 : public ::testing::TestWithParam<const SimdTable*> {
 protected:
  const SimdTable& table() const { return *GetParam(); }

  // A rows x dim tensor in a dtype, and the row pointers that lead to it.
  struct Tensor {
    std::vector<float> f32;
    std::vector<uint16_t> bits;
    std::vector<void*> rows;
    SimdTable::Rows view;
  };
  Tensor random_tensor(int64_t num_rows, int64_t dim, DType dtype, int64_t stride = 1) {
    Tensor t;
    const size_t size = static_cast<size_t>(num_rows * dim * stride);
    std::uniform_real_distribution<float> uniform(-1, 1);
    t.f32.resize(size);
    t.bits.resize(size);
    for (size_t i = 0; i < size; ++i) {
      t.f32[i] = uniform(random_);
      t.bits[i] = (dtype == DType::kF16 ? kHalf : kBfloat16).nearest(t.f32[i]);
    }
    for (int64_t r = 0; r < num_rows; ++r) {
      const size_t at = static_cast<size_t>(r * dim * stride);
      t.rows.push_back(dtype == DType::kF32 ? static_cast<void*>(t.f32.data() + at)
                                            : static_cast<void*>(t.bits.data() + at));
    }
    t.view = {t.rows.data(), dtype, stride, num_rows, dim};
    return t;
  }
  static uint16_t expected(const Tensor& t, int64_t row, int64_t d) {
    if (t.rows[static_cast<size_t>(row)] == nullptr) return 0;
    const size_t at = static_cast<size_t>((row * t.view.dim + d) * t.view.stride);
    if (t.view.dtype == DType::kF32) return kBfloat16.nearest(t.f32[at]);
    if (t.view.dtype == DType::kF16) return kBfloat16.nearest(kHalf.value(t.bits[at]));
    return t.bits[at];
  }

  std::mt19937 random_{5};
};

TEST_P(GemmBf16, PackedFormsHoldTheRoundedElementsAndZeros) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t num_rows : {1, 2, 7, 16, 33}) {
      for (const int64_t dim : {1, 2, 15, 32, 67}) {
        Tensor t = random_tensor(num_rows, dim, dtype, num_rows == 7 ? 3 : 1);
        if (num_rows > 6) t.rows[4] = nullptr;
        const int64_t ld = (dim + 1) / 2 * 2 + (dim == 15 ? 4 : 0);
        Guarded<Bf16> rows(num_rows * ld);
        Guarded<Bf16> pairs((num_rows + 1) / 2 * 2 * ld);
        const int64_t ld_t = table().padded(num_rows);
        Guarded<Bf16> transposed((dim + 1) / 2 * 2 * ld_t);
        EXPECT_FALSE(table().pack_rows_bf16(t.view, rows.data(), ld));
        EXPECT_FALSE(table().pack_pairs(t.view, pairs.data(), ld));
        EXPECT_FALSE(table().pack_pairs_transposed(t.view, transposed.data(), ld_t));
        for (int64_t r = 0; r < (num_rows + 1) / 2 * 2; ++r) {
          for (int64_t d = 0; d < ld; ++d) {
            const uint16_t bits = r < num_rows && d < dim ? expected(t, r, d) : 0;
            if (r < num_rows) {
              EXPECT_EQ(rows[r * ld + d].bits, bits);
            }
            EXPECT_EQ(pairs[(r / 2 * ld + d) * 2 + r % 2].bits, bits);
          }
        }
        for (int64_t r = 0; r < ld_t; ++r) {
          for (int64_t d = 0; d < (dim + 1) / 2 * 2; ++d) {
            const uint16_t bits = r < num_rows && d < dim ? expected(t, r, d) : 0;
            EXPECT_EQ(transposed[(d / 2 * ld_t + r) * 2 + d % 2].bits, bits);
          }
        }
      }
    }
  }
}

TEST_P(GemmBf16, ANonFiniteElementIsReported) {
  for (const uint16_t special : std::vector<uint16_t>{0x7F80, 0xFF80, 0x7FC0}) {
    for (const int64_t at : {0, 40, 19 * 21 - 1}) {
      Tensor t = random_tensor(19, 21, DType::kBF16);
      t.bits[static_cast<size_t>(at)] = special;
      std::vector<Bf16> dst(4096);
      EXPECT_TRUE(table().pack_rows_bf16(t.view, dst.data(), 22));
      EXPECT_TRUE(table().pack_pairs(t.view, dst.data(), 32));
      EXPECT_TRUE(table().pack_pairs_transposed(t.view, dst.data(), 32));
    }
  }
}

// Products are exact in double; only the float32 sums round.
void check(const SimdTable::Product& x, const std::vector<float>& old_c, auto a, auto b) {
  for (int64_t i = 0; i < x.m; ++i) {
    for (int64_t j = 0; j < x.n; ++j) {
      double sum = 0;
      double size = 0;
      for (int64_t p = 0; p < x.k; ++p) {
        sum += a(i, p) * b(p, j) * x.alpha;
        size += std::fabs(a(i, p) * b(p, j) * x.alpha);
      }
      if (x.accumulate) sum += double{x.row_scale[i]} * old_c[static_cast<size_t>(i * x.ldc + j)];
      ASSERT_NEAR(x.c[i * x.ldc + j], sum, 0x1p-22 * (size + 1) * 3) << i << " " << j;
    }
  }
}

TEST_P(GemmBf16, ProductsOfPackedOperands) {
  for (const int64_t m : {1, 5, 6, 23}) {
    for (const int64_t n : {1, 16, 50, 64, 150}) {
      for (const int64_t k : {1, 2, 33, 64}) {
        const int64_t lda = (k + 1) / 2 * 2;
        const int64_t ldb = table().tile_ld(n);
        Tensor q = random_tensor(m, k, DType::kBF16);
        Tensor key = random_tensor(n, k, DType::kBF16);
        Guarded<Bf16> a(m * lda);
        Guarded<Bf16> b(lda * ldb);
        Guarded<float> c(m * ldb);
        table().pack_rows_bf16(q.view, a.data(), lda);
        table().pack_pairs_transposed(key.view, b.data(), ldb);
        std::vector<float> row_scale(static_cast<size_t>(m), 0.25f);
        std::fill(c.begin(), c.end(), 3.0f);
        const std::vector<float> old_c(c.begin(), c.end());
        SimdTable::Product product{m, n, k, a.data(), lda, 2, b.data(), ldb, c.data(), ldb};
        product.alpha = 0.3f;
        product.accumulate = true;
        product.row_scale = row_scale.data();
        table().gemm_bf16(product);
        check(
            product, old_c, [&](int64_t i, int64_t p) { return value({expected(q, i, p)}); },
            [&](int64_t p, int64_t j) { return value({expected(key, j, p)}); });
      }
    }
  }
}

TEST_P(GemmBf16, TransposedAComesFromPairsOfRows) {
  constexpr int64_t kRows = 21;  // summed over, an odd number
  constexpr int64_t kM = 30;
  constexpr int64_t kN = 40;
  Tensor p = random_tensor(kRows, kM, DType::kBF16);
  Tensor dout = random_tensor(kRows, kN, DType::kBF16);
  const int64_t lda = table().padded(kM);
  const int64_t ldb = table().padded(kN);
  std::vector<Bf16> a(static_cast<size_t>((kRows + 1) * lda));
  std::vector<Bf16> b(static_cast<size_t>((kRows + 1) * ldb));
  std::vector<float> c(static_cast<size_t>(kM * ldb));
  table().pack_pairs(p.view, a.data(), lda);
  table().pack_pairs(dout.view, b.data(), ldb);
  const SimdTable::Product product{kM,      kN,       kRows, a.data(), 2,
                                   2 * lda, b.data(), ldb,   c.data(), ldb};
  table().gemm_bf16(product);
  check(
      product, {}, [&](int64_t i, int64_t r) { return value({expected(p, r, i)}); },
      [&](int64_t r, int64_t j) { return value({expected(dout, r, j)}); });
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GemmBf16);
INSTANTIATE_TEST_SUITE_P(Isa, GemmBf16, ::testing::ValuesIn(bf16_dot_tables()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace flashtile::testing
