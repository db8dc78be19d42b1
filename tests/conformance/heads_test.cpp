// SPDX-License-Identifier: Apache-2.0
//
// Grouped heads and unequal head dims: reports from other libraries, as small inputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "flashtile/error.hpp"
#include "support/attention_runs.hpp"
#include "tensors.hpp"

namespace flashtile::test {
namespace {

/// Keys with each head repeated `times` times.
Tensor repeat_heads(const TensorView& k, int64_t times) {
  const Tensor result(k.dtype, {k.shape[0], k.shape[1], k.shape[2] * times, k.shape[3]});
  for (int64_t b = 0; b < k.shape[0]; ++b) {
    for (int64_t j = 0; j < k.shape[1]; ++j) {
      for (int64_t h = 0; h < k.shape[2] * times; ++h) {
        for (int64_t d = 0; d < k.shape[3]; ++d) {
          result.set({b, j, h, d}, get(k, {b, j, h / times, d}));
        }
      }
    }
  }
  return result;
}

// native-sparse-attention-triton#27
TEST(GroupedHeads, EqualRepeatedKeysSummedByGroup) {
  for (const int64_t num_heads : {6, 12}) {
    const Tensor q = Tensor::random(DType::kF32, {2, 65, num_heads, 32}, 1);
    const Tensor k = Tensor::random(DType::kF32, {2, 65, 2, 32}, 2);
    const Tensor v = Tensor::random(DType::kF32, {2, 65, 2, 32}, 3);
    const Tensor dout = Tensor::random(DType::kF32, {2, 65, num_heads, 32}, 4);
    const int64_t ratio = num_heads / 2;
    const Inputs grouped{q, k, v, dout, {}};
    const Inputs repeated{q, repeat_heads(k, ratio), repeat_heads(v, ratio), dout, {}};
    for (const std::string& implementation : all_implementations()) {
      const Results results = run(grouped, implementation);
      const Results apart = run(repeated, implementation);
      EXPECT_TRUE(same_bits(results.out, apart.out)) << implementation;
      EXPECT_TRUE(same_bits(results.lse, apart.lse)) << implementation;
      EXPECT_LT(max_difference(results.dq, apart.dq), 1e-5) << implementation;
      for (const auto& [mine, theirs] :
           {std::pair{results.dk, apart.dk}, std::pair{results.dv, apart.dv}}) {
        for (int64_t n = 0; n < 2 * 65 * 2 * 32; ++n) {
          const int64_t d = n % 32, h = n / 32 % 2, j = n / 64 % 65, b = n / (64 * 65);
          double sum = 0;
          for (int64_t g = 0; g < ratio; ++g) sum += theirs.get({b, j, h * ratio + g, d});
          ASSERT_NEAR(mine.get({b, j, h, d}), sum, 1e-5) << implementation;
        }
      }
    }
  }
}

// native-sparse-attention-triton#27
/// Heads that take turns, head h with key head h mod 2: one call for each key head, with every
/// second head of q.
TEST(GroupedHeads, MayTakeTurnsOverSeveralCalls) {
  for (const int64_t num_heads : {6, 12}) {
    const Tensor q = Tensor::random(DType::kF32, {2, 65, num_heads, 32}, 1);
    const Tensor k = Tensor::random(DType::kF32, {2, 65, 2, 32}, 2);
    const Tensor v = Tensor::random(DType::kF32, {2, 65, 2, 32}, 3);
    const Tensor dout = Tensor::random(DType::kF32, {2, 65, num_heads, 32}, 4);
    const int64_t ratio = num_heads / 2;
    const auto of_key_head = [&](const Tensor& x, int64_t g) {
      TensorView part = x.view().sliced(2, g, g + 1);
      part.shape[2] = ratio;
      part.strides[2] *= 2;
      return part;
    };
    const Tensor sorted_q(DType::kF32, {2, 65, num_heads, 32});
    const Tensor sorted_dout(DType::kF32, {2, 65, num_heads, 32});
    for (int64_t g = 0; g < 2; ++g) {
      const auto sort = [&](const Tensor& x, const Tensor& sorted) {
        cli::from_numbers(cli::to_numbers(of_key_head(x, g)),
                          sorted.view().sliced(2, g * ratio, (g + 1) * ratio));
      };
      sort(q, sorted_q);
      sort(dout, sorted_dout);
    }
    for (const std::string& implementation : all_implementations()) {
      const Results grouped = run({sorted_q, k, v, sorted_dout, {}}, implementation);
      for (int64_t g = 0; g < 2; ++g) {
        const Results results = run({of_key_head(q, g),
                                     k.view().sliced(2, g, g + 1),
                                     v.view().sliced(2, g, g + 1),
                                     of_key_head(dout, g),
                                     {}},
                                    implementation);
        const auto heads = [&](const Tensor& x) {
          return x.view().sliced(2, g * ratio, (g + 1) * ratio);
        };
        EXPECT_TRUE(same_bits(results.out, heads(grouped.out))) << implementation;
        EXPECT_LT(max_difference(results.dq, heads(grouped.dq)), 1e-5) << implementation;
        EXPECT_LT(max_difference(results.dk, grouped.dk.view().sliced(2, g, g + 1)), 1e-5)
            << implementation;
        EXPECT_LT(max_difference(results.dv, grouped.dv.view().sliced(2, g, g + 1)), 1e-5)
            << implementation;
      }
    }
  }
}

/// q's head h reads key head h / ratio, never h mod num_heads_kv.
TEST(GroupedHeads, AreNeighbours) {
  const Tensor q = Tensor::random(DType::kF32, {1, 1, 6, 8}, 1);
  const Tensor k = Tensor::random(DType::kF32, {1, 5, 2, 8}, 2);
  const Tensor v = Tensor::filled(DType::kF32, {1, 5, 2, 8}, 0);
  for (int64_t j = 0; j < 5; ++j) {
    for (int64_t d = 0; d < 8; ++d) v.set({0, j, 1, d}, 1);
  }
  for (const std::string& implementation : all_implementations()) {
    const Results results = run({q, k, v, {}, {}}, implementation);
    for (int64_t h = 0; h < 6; ++h) {
      EXPECT_NEAR(results.out.get({0, 0, h, 3}), h < 3 ? 0 : 1, 1e-6) << implementation;
    }
  }
}

// native-sparse-attention-triton#27; flash-attention#2552, #1487
TEST(UnequalHeadDims, HaveGradients) {
  for (const auto& [head_dim, head_dim_v] :
       {std::pair<int64_t, int64_t>{32, 64}, {64, 32}, {128, 96}, {128, 8}, {192, 128}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      expect_all_conform({Tensor::random(dtype, {1, 70, 2, head_dim}, 1),
                          Tensor::random(dtype, {1, 70, 2, head_dim}, 2),
                          Tensor::random(dtype, {1, 70, 2, head_dim_v}, 3),
                          Tensor::random(dtype, {1, 70, 2, head_dim_v}, 4),
                          {}});
    }
  }
}

// flash-attention#2552, #1487
TEST(UnequalHeadDims, OfLatentAttentionDecode) {
  // Values are the first 512 of 576 numbers of each key.
  const Tensor q = Tensor::random(DType::kBF16, {1, 1, 16, 576}, 1, 0.3);
  const Tensor k = Tensor::random(DType::kBF16, {1, 300, 1, 576}, 2, 0.3);
  expect_all_conform({q, k, k.view().sliced(3, 0, 512), {}, {}});
}

// flashinfer#996, PR 3563, PR 4316; pytorch#151359
TEST(GroupedHeadsFull, DecodeWithAnyGroupSize) {
  const Tensor all_k = Tensor::random(DType::kF32, {1, 4096, 4, 128}, 2);
  const Tensor all_v = Tensor::random(DType::kF32, {1, 4096, 4, 128}, 3);
  for (const auto& [num_heads, num_heads_kv] :
       {std::pair<int64_t, int64_t>{28, 4}, {24, 4}, {12, 2}, {64, 4}, {64, 2}}) {
    for (const int64_t head_dim : {16, 128}) {
      expect_all_conform({Tensor::random(DType::kBF16, {1, 1, num_heads, head_dim}, 1),
                          Tensor::random(DType::kBF16, {1, 256, num_heads_kv, head_dim}, 2),
                          Tensor::random(DType::kBF16, {1, 256, num_heads_kv, head_dim}, 3),
                          {},
                          {}});
      const auto part = [&, heads = num_heads_kv](const Tensor& x) {
        return x.view().sliced(2, 0, heads).sliced(3, 0, head_dim);
      };
      const Tensor q = Tensor::random(DType::kF32, {1, 1, num_heads, head_dim}, 1);
      const Inputs long_one{q, part(all_k), part(all_v), {}, {}};
      const Results expected = run(long_one, "reference");
      for (const std::string& implementation : all_kernels()) {
        const Results results = run(long_one, implementation);
        EXPECT_LT(max_difference(results.out, expected.out), 2e-6) << implementation;
        EXPECT_LT(max_difference(results.lse, expected.lse), 1e-5) << implementation;
      }
    }
  }
}

/// A pool of pages and the table that strings them together.
struct Paged {
  Paged(const TensorView& k, int64_t page_size)
      : pages((k.shape[1] + page_size - 1) / page_size),
        pool(k.dtype, {pages + 2, page_size, k.shape[2], k.shape[3]}) {
    std::vector<int64_t> order(static_cast<size_t>(pages));
    std::iota(order.begin(), order.end(), 1);
    std::reverse(order.begin(), order.end());
    table = Tensor::of(DType::kI32, {1, pages}, std::vector<double>(order.begin(), order.end()));
    for (int64_t j = 0; j < k.shape[1]; ++j) {
      const int64_t page = order[static_cast<size_t>(j / page_size)];
      for (int64_t n = 0; n < k.shape[2] * k.shape[3]; ++n) {
        const int64_t h = n / k.shape[3], d = n % k.shape[3];
        pool.set({page, j % page_size, h, d}, get(k, {0, j, h, d}));
      }
    }
  }
  int64_t pages;
  Tensor pool, table;
};

// flashinfer#2896
TEST(GroupedHeads, OfPagedDecodeAreAsExactAsRepeatedKeys) {
  const Tensor q = Tensor::random(DType::kBF16, {1, 1, 28, 128}, 1);
  const Tensor k = Tensor::random(DType::kBF16, {1, 256, 4, 128}, 2);
  const Tensor v = Tensor::random(DType::kBF16, {1, 256, 4, 128}, 3);
  const Paged paged_k(k, 16), paged_v(v, 16);
  const Tensor repeated_k = repeat_heads(k, 7), repeated_v = repeat_heads(v, 7);
  Inputs paged{q, paged_k.pool, paged_v.pool, {}, {}};
  paged.options.block_table = paged_k.table;
  // The last of 16 pages is full, holds some, holds none.
  for (const int length : {256, 250, 240}) {
    const Tensor used = Tensor::ints({length});
    paged.options.seqused_k = used;
    const Inputs repeated{
        q, repeated_k.view().sliced(1, 0, length), repeated_v.view().sliced(1, 0, length), {}, {}};
    for (const std::string& implementation : all_implementations()) {
      EXPECT_EQ(differing(run(paged, implementation), run(repeated, implementation)), "")
          << implementation << " length " << length;
    }
  }
  for (const int length : {257, -1}) {
    const Tensor used = Tensor::ints({length});
    paged.options.seqused_k = used;
    for (const std::string& implementation : all_implementations()) {
      EXPECT_THROW(run(paged, implementation), Error) << implementation << " length " << length;
    }
  }
}

// pytorch PR 185349, flash-attention PR 708
TEST(GroupedHeads, WithFewQueriesAreNotConfusedWithThem) {
  Inputs short_ones{Tensor::random(DType::kF32, {1, 100, 4, 16}, 1),
                    Tensor::random(DType::kF32, {1, 100, 2, 16}, 2),
                    Tensor::random(DType::kF32, {1, 100, 2, 16}, 3),
                    Tensor::random(DType::kF32, {1, 100, 4, 16}, 4),
                    {}};
  expect_all_conform(short_ones);
  const Tensor one = Tensor::of(DType::kI32, {1, 1, 1}, std::vector<double>{1});
  const Tensor first = Tensor::of(DType::kI32, {1, 1, 1, 1}, std::vector<double>{0});
  short_ones.options.block_counts = one;
  short_ones.options.block_indices = first;
  short_ones.options.block_rows = short_ones.options.block_cols = 128;
  expect_all_conform(short_ones);
  const Tensor counts = Tensor::of(DType::kI32, {1, 1, 1}, std::vector<double>{2});
  const Tensor blocks = Tensor::of(DType::kI32, {1, 1, 1, 3}, std::vector<double>{2, 0, 1});
  Inputs inputs{Tensor::random(DType::kF32, {1, 4, 8, 16}, 1),
                Tensor::random(DType::kF32, {1, 300, 2, 16}, 2),
                Tensor::random(DType::kF32, {1, 300, 2, 16}, 3),
                Tensor::random(DType::kF32, {1, 4, 8, 16}, 4),
                {}};
  inputs.options.block_counts = counts;
  inputs.options.block_indices = blocks;
  inputs.options.block_rows = 128;
  inputs.options.block_cols = 128;
  expect_all_conform(inputs);
}

}  // namespace
}  // namespace flashtile::test
