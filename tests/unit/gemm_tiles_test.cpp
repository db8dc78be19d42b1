// SPDX-License-Identifier: Apache-2.0
#include "unit/gemm_tiles.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "unit/simd_float_bits.hpp"
#include "unit/simd_guarded.hpp"

namespace flashtile::testing {
namespace {

using cpu::Bf16;

double value(Bf16 x) { return kBfloat16.value(x.bits); }

/// Operands that end where a page may not be touched.
struct Operands {
  Operands(int64_t num_rows, int64_t num_columns, int64_t sum_length, bool has_transposed_a)
      : m(num_rows),
        n(num_columns),
        k(sum_length),
        pairs((k + 1) / 2),
        columns((n + 15) / 16 * 16),
        is_transposed(has_transposed_a),
        a(2 * m * pairs),
        b(2 * pairs * columns),
        c(m * columns),
        addend(m + columns),
        row_scale(m) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    const auto next = [&] { return Bf16{kBfloat16.nearest(uniform(random))}; };
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t p = 0; p < 2 * pairs; ++p) *a_at(i, p) = p < k ? next() : Bf16{0};
      row_scale.data()[i] = uniform(random);
    }
    for (int64_t p = 0; p < 2 * pairs; ++p) {
      for (int64_t j = 0; j < columns; ++j) *b_at(p, j) = p < k ? next() : Bf16{0};
    }
    for (float& x : c) x = uniform(random);
    for (float& x : addend) x = uniform(random);
  }

  Bf16* a_at(int64_t i, int64_t p) {
    return a.data() + (is_transposed ? (p / 2 * m + i) * 2 + p % 2 : i * 2 * pairs + p);
  }
  Bf16* b_at(int64_t p, int64_t j) { return b.data() + (p / 2 * columns + j) * 2 + p % 2; }

  TileProduct product() {
    TileProduct x{m, n, k, a.data(), 2 * pairs, 2, b.data(), columns, c.data(), columns};
    if (is_transposed) {
      x.row_stride = 2;
      x.pair_stride = 2 * m;
    }
    return x;
  }

  /// Runs the product and looks at each element.
  void check(const TileProduct& x) {
    const std::vector<float> old(c.begin(), c.end());
    multiply_emulated_tiles(x);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        double size = 0;
        for (int64_t p = 0; p < k; ++p) {
          const double term = value(*a_at(i, p)) * value(*b_at(p, j)) * double{x.alpha};
          sum += term;
          size += std::fabs(term);
        }
        const double scale = x.row_scale != nullptr ? double{x.row_scale[i]} : 1;
        if (x.accumulate) sum += scale * double{old[static_cast<size_t>(i * columns + j)]};
        if (x.addend != nullptr) sum += scale * double{x.addend[i * x.addend_row_stride + j]};
        ASSERT_NEAR(c[i * columns + j], sum, 0x1p-22 * (size + 1) * 3)
            << m << " " << n << " " << k << " at " << i << " " << j;
      }
    }
  }

  std::mt19937 random{3};
  int64_t m, n, k, pairs, columns;
  bool is_transposed;
  Guarded<Bf16> a, b;
  Guarded<float> c, addend, row_scale;
};

template <class Body>
void for_each_shape(const Body& body) {
  for (const bool is_transposed : {false, true}) {
    for (const int64_t m : {1, 16, 23, 32, 48, 51}) {
      for (const int64_t n : {1, 16, 50, 64, 150}) {
        for (const int64_t k : {1, 2, 30, 32, 33, 64, 96, 257}) {
          if (is_transposed && m == 1) continue;  // strides that are those of rows
          body(Operands(m, n, k, is_transposed));
        }
      }
    }
  }
}

TEST(GemmTiles, SumsFromZero) {
  for_each_shape([](Operands x) { x.check(x.product()); });
}

TEST(GemmTiles, SumsTimesAFactor) {
  for_each_shape([](Operands x) {
    TileProduct product = x.product();
    product.alpha = 0.3f;
    x.check(product);
    product.accumulate = true;
    x.check(product);
  });
}

TEST(GemmTiles, SumsThatGoOnWithAndWithoutRowsScaled) {
  for_each_shape([](Operands x) {
    TileProduct product = x.product();
    product.accumulate = true;
    x.check(product);
    product.row_scale = x.row_scale.data();
    x.check(product);
  });
}

TEST(GemmTiles, AnAddendWhoseRowsOverlap) {
  for_each_shape([](Operands x) {
    TileProduct product = x.product();
    product.addend = x.addend.data() + x.m;
    product.addend_row_stride = -1;
    x.check(product);
  });
}

TEST(GemmTiles, NothingToSumIsZero) {
  Operands x(20, 20, 0, false);
  x.check(x.product());
  TileProduct product = x.product();
  product.accumulate = true;
  x.check(product);
}

// What a row comes to depends on no other row, however many there are: rescaled ones neither.
TEST(GemmTiles, RowsComeOutTheSameInAnyBlock) {
  constexpr int64_t kRows = 96;
  constexpr int64_t kN = 80;
  constexpr int64_t kK = 90;
  for (const bool is_rescaled : {false, true}) {
    Operands all(kRows, kN, kK, false);
    std::fill(all.row_scale.begin(), all.row_scale.end(), 1.0f);
    Guarded<float> parts(kRows * kN);
    std::copy(all.c.begin(), all.c.end(), parts.begin());
    TileProduct product = all.product();
    product.accumulate = true;
    multiply_emulated_tiles(product);
    for (int64_t row = 0; row < kRows; row += 24) {
      product.m = 24;
      product.a = all.a_at(row, 0);
      product.c = parts.data() + row * kN;
      if (is_rescaled) product.row_scale = all.row_scale.data();
      multiply_emulated_tiles(product);
    }
    for (int64_t at = 0; at < kRows * kN; ++at) ASSERT_EQ(all.c[at], parts[at]) << at;
  }
}

}  // namespace
}  // namespace flashtile::testing
