// SPDX-License-Identifier: Apache-2.0
//
// Masked rows and extreme logits: reports from other libraries, as small inputs.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "flashtile/merge.hpp"
#include "support/attention_runs.hpp"

namespace flashtile::test {
namespace {

constexpr double kLowest = -3.4028234663852886e38;

void expect_empty_row(const Results& results, int64_t b, int64_t i, int64_t h,
                      const std::string& implementation) {
  const TensorView& out = results.out;
  for (int64_t d = 0; d < out.shape[3]; ++d) {
    EXPECT_EQ(results.out.get({b, i, h, d}), 0) << implementation << " row " << i;
  }
  EXPECT_EQ(results.lse.get({b, h, i}), -kInf) << implementation << " row " << i;
  if (!results.dq) return;
  for (int64_t d = 0; d < results.dq.view().shape[3]; ++d) {
    EXPECT_EQ(results.dq.get({b, i, h, d}), 0) << implementation << " row " << i;
  }
}

/// A (queries, keys) table of 0 and 1 as the mask "keep[q_idx, k_idx]", and as an additive one.
struct MaskTable {
  MaskTable(int64_t rows, int64_t cols, const std::function<bool(int64_t, int64_t)>& keeps)
      : keep(Tensor::filled(DType::kI32, {rows, cols}, 0)),
        additive(Tensor::filled(DType::kF32, {1, 1, rows, cols}, -kInf)) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        if (!keeps(i, j)) continue;
        keep.set({i, j}, 1);
        additive.set({0, 0, i, j}, 0);
      }
    }
  }
  AttentionOptions as_mask() const {
    AttentionOptions options;
    options.mask = "keep[q_idx, k_idx]";
    options.aux = {{"keep", keep, {}}};
    return options;
  }
  AttentionOptions as_bias() const {
    AttentionOptions options;
    options.bias = additive;
    return options;
  }
  Tensor keep, additive;
};

// pytorch#103749, #103963, mlx#2395
TEST(MaskedRows, FullyHiddenRowsAreEmptyAndLeaveOthersAlone) {
  struct Shape {
    int64_t sq, sk, first_hidden;
  };
  for (const Shape& shape : {Shape{6, 10, 5}, Shape{8, 8, 4}}) {
    const Tensor q = Tensor::random(DType::kF32, {1, shape.sq, 2, 8}, 1);
    const Tensor k = Tensor::random(DType::kF32, {1, shape.sk, 2, 8}, 2);
    const Tensor v = Tensor::random(DType::kF32, {1, shape.sk, 2, 8}, 3);
    const Tensor dout = Tensor::random(DType::kF32, {1, shape.sq, 2, 8}, 4);
    const MaskTable table(shape.sq, shape.sk,
                          [&](int64_t i, int64_t j) { return i < shape.first_hidden && j <= i; });
    for (const bool is_bias : {false, true}) {
      Inputs inputs{q, k, v, dout, is_bias ? table.as_bias() : table.as_mask()};
      inputs.options.softmax_scale = 0.125;
      expect_all_conform(inputs);
      Inputs causal = inputs;
      causal.options = {};
      causal.options.softmax_scale = 0.125;
      causal.options.causal = true;
      causal.options.query_offset = 0;
      for (const std::string& implementation : all_implementations()) {
        const Results results = run(inputs, implementation);
        const Results others = run(causal, implementation);
        for (int64_t i = 0; i < shape.sq; ++i) {
          for (int64_t h = 0; h < 2; ++h) {
            if (i >= shape.first_hidden) {
              expect_empty_row(results, 0, i, h, implementation);
              continue;
            }
            EXPECT_NEAR(results.lse.get({0, h, i}), others.lse.get({0, h, i}), 1e-6);
            EXPECT_NEAR(results.out.get({0, i, h, 3}), others.out.get({0, i, h, 3}), 1e-6);
          }
        }
      }
    }
  }
}

// pytorch#109517
TEST(MaskedRows, LowestFiniteBiasHidesBesideOthersAndAveragesAlone) {
  const Tensor q = Tensor::random(DType::kF32, {2, 441, 2, 64}, 1);
  const Tensor k = Tensor::random(DType::kF32, {2, 441, 2, 64}, 2);
  const Tensor v = Tensor::random(DType::kF32, {2, 441, 2, 64}, 3);
  const Tensor columns = Tensor::filled(DType::kF32, {1, 1, 1, 441}, 0);
  for (int64_t j = 0; j < 128; ++j) columns.set({0, 0, 0, j}, kLowest);
  const Tensor one_row = Tensor::filled(DType::kF32, {1, 1, 441, 441}, 0);
  for (int64_t j = 0; j < 441; ++j) one_row.set({0, 0, 7, j}, kLowest);
  Inputs hidden{q, k, v, {}, {}};
  hidden.options.bias = columns;
  Inputs row{q, k, v, {}, {}};
  row.options.bias = one_row;
  const Inputs rest{q, k.view().sliced(1, 128, 441), v.view().sliced(1, 128, 441), {}, {}};
  for (const std::string& implementation : all_implementations()) {
    const Results expected = run(rest, implementation);
    const Results results = run(hidden, implementation);
    EXPECT_LT(max_difference(results.out, expected.out), 1e-6) << implementation;
    EXPECT_LT(max_difference(results.lse, expected.lse), 1e-5) << implementation;
    const Results averaged = run(row, implementation);
    for (int64_t d = 0; d < 64; ++d) {
      double mean = 0;
      for (int64_t j = 0; j < 441; ++j) mean += v.get({1, j, 1, d}) / 441;
      EXPECT_NEAR(averaged.out.get({1, 7, 1, d}), mean, 1e-6) << implementation;
    }
  }
}

// pytorch#127055
TEST(MaskedRows, LeadingTilesThatAreAllHiddenDoNotSpoilLaterOnes) {
  const Tensor ones = Tensor::filled(DType::kF32, {1, 640, 1, 4}, 1);
  const MaskTable table(640, 640, [](int64_t i, int64_t j) { return j <= i && i - j <= 9; });
  for (const AttentionOptions& options : {table.as_bias(), table.as_mask()}) {
    const Inputs inputs{ones, ones, ones, ones, options};
    for (const std::string& implementation : all_implementations()) {
      const Results results = run(inputs, implementation);
      for (const double x : results.out.numbers()) ASSERT_NEAR(x, 1, 1e-6) << implementation;
      for (int64_t i = 0; i < 640; ++i) {
        const double count = static_cast<double>(std::min<int64_t>(i + 1, 10));
        ASSERT_NEAR(results.lse.get({0, 0, i}), 2 + std::log(count), 1e-5) << implementation;
      }
      for (const double x : results.dq.numbers()) ASSERT_NEAR(x, 0, 1e-5) << implementation;
    }
  }
}

// pytorch#101967
TEST(MaskedRows, HiddenKeyMayHoldAnything) {
  const MaskTable table(2, 2, [](int64_t, int64_t j) { return j == 0; });
  for (const AttentionOptions& options : {table.as_bias(), table.as_mask()}) {
    for (const std::string& implementation : all_implementations()) {
      for (const bool in_keys : {true, false}) {
        std::vector<Results> all;
        for (const double value : {0.0, 1e10, kNan, kInf}) {
          const Tensor q = Tensor::random(DType::kF32, {1, 2, 1, 4}, 1);
          const Tensor k = Tensor::random(DType::kF32, {1, 2, 1, 4}, 2);
          const Tensor v = Tensor::random(DType::kF32, {1, 2, 1, 4}, 3);
          (in_keys ? k : v).set({0, 1, 0, 0}, value);
          all.push_back(run({q, k, v, q, options}, implementation));
          EXPECT_EQ(differing(all.back(), all.front()), "") << implementation << " " << value;
          for (int64_t d = 0; d < 4; ++d) {
            EXPECT_EQ(all.back().dk.get({0, 1, 0, d}), 0) << implementation << " " << value;
            EXPECT_EQ(all.back().dv.get({0, 1, 0, d}), 0) << implementation << " " << value;
          }
        }
      }
    }
  }
}

// flash-attention#2374
TEST(MaskedRows, CacheBeyondItsLengthIsNotRead) {
  const Tensor q = Tensor::random(DType::kBF16, {4, 1, 8, 64}, 1);
  const Tensor k = Tensor::random(DType::kBF16, {4, 128, 8, 64}, 2);
  const Tensor v = Tensor::random(DType::kBF16, {4, 128, 8, 64}, 3);
  const Tensor lengths = Tensor::ints({32, 64, 96, 48});
  for (int64_t b = 0; b < 4; ++b) {
    for (int64_t j = static_cast<int64_t>(lengths.get({b})); j < 128; ++j) {
      for (int64_t n = 0; n < 8 * 64; ++n) {
        k.set({b, j, n / 64, n % 64}, kNan);
        v.set({b, j, n / 64, n % 64}, kNan);
      }
    }
  }
  Inputs inputs{q, k, v, {}, {}};
  inputs.options.seqused_k = lengths;
  expect_all_conform(inputs);
}

// flashinfer#4267, #4450
TEST(MaskedRows, LogitsFarBelowZeroKeepTheirWeights) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor q = Tensor::filled(dtype, {1, 1, 1, 64}, 100);
    const Tensor k = Tensor::filled(dtype, {1, 4, 1, 64}, -100);
    const Tensor v = Tensor::filled(dtype, {1, 4, 1, 64}, 0);
    q.set({0, 0, 0, 0}, 8);
    double sum = 0;
    for (int64_t j = 0; j < 4; ++j) {
      k.set({0, j, 0, 0}, -100 - 0.5 * static_cast<double>(j));
      v.set({0, j, 0, j}, 1);
      sum += std::exp(-0.5 * static_cast<double>(j));
    }
    const Inputs inputs{q, k, v, {}, {}};
    expect_all_conform(inputs);
    for (const std::string& implementation : all_implementations()) {
      const Results results = run(inputs, implementation);
      // A step of float32 there is 1 / 128.
      EXPECT_NEAR(results.lse.get({0, 0, 0}), -78849.213, 0.01) << implementation;
      for (int64_t j = 0; j < 4; ++j) {
        EXPECT_NEAR(results.out.get({0, 0, 0, j}), std::exp(-0.5 * static_cast<double>(j)) / sum,
                    0.01)
            << implementation;
      }
    }
  }
}

// flashinfer#4452, flash-attention#1778
TEST(MaskedRows, CausalWithMoreQueriesThanKeysHasEmptyRows) {
  AttentionOptions options;
  options.causal = true;
  for (const std::string& implementation : all_implementations()) {
    EXPECT_EQ(visible_keys(5, 2, options, implementation),
              (std::vector<std::string>{"00", "00", "00", "10", "11"}))
        << implementation;
  }
  struct Shape {
    int64_t seqlen_q, seqlen_k, page_size;
  };
  for (const Shape& shape : {Shape{5, 2, 1}, Shape{2048, 1024, 16}}) {
    const Tensor q = Tensor::random(DType::kF32, {1, shape.seqlen_q, 1, 16}, 1);
    const Tensor k = Tensor::random(DType::kF32, {1, shape.seqlen_k, 1, 16}, 2);
    const Inputs dense{q, k, k, {}, options};
    Inputs paged = dense;
    const int64_t num_pages = shape.seqlen_k / shape.page_size;
    const int64_t pages[] = {num_pages, shape.page_size, 1, 16};
    const TensorView pool(k.view().data, DType::kF32, pages);
    std::vector<double> numbers(static_cast<size_t>(num_pages));
    std::iota(numbers.begin(), numbers.end(), 0);
    const Tensor table = Tensor::of(DType::kI32, {1, num_pages}, numbers);
    paged.k = paged.v = pool;
    paged.options.block_table = table;
    const Results expected = run(dense, "reference");
    for (const std::string& implementation : all_implementations()) {
      const Results results = run(dense, implementation);
      EXPECT_LT(max_difference(results.out, expected.out), 1e-5) << implementation;
      EXPECT_LT(max_difference(results.lse, expected.lse), 1e-5) << implementation;
      for (int64_t i = 0; i < shape.seqlen_q; ++i) {
        const bool is_empty = i < shape.seqlen_q - shape.seqlen_k;
        ASSERT_EQ(results.lse.get({0, 0, i}) == -kInf, is_empty) << implementation << " " << i;
        ASSERT_EQ(results.out.get({0, i, 0, 5}) == 0, is_empty) << implementation << " " << i;
      }
      EXPECT_EQ(differing(run(paged, implementation), results), "") << implementation;
    }
  }
}

// flash-attention PR 978
TEST(MaskedRows, SequenceWithoutKeysHasLseOfMinusInfinity) {
  const Tensor q = Tensor::random(DType::kF32, {6, 2, 8}, 1);
  const Tensor k = Tensor::random(DType::kF32, {7, 2, 8}, 2);
  const Tensor cu_seqlens_q = Tensor::ints({0, 2, 4, 6});
  const Tensor cu_seqlens_k = Tensor::ints({0, 4, 4, 7});
  Inputs inputs{q, k, k, q, {}};
  inputs.options.cu_seqlens_q = cu_seqlens_q;
  inputs.options.cu_seqlens_k = cu_seqlens_k;
  expect_all_conform(inputs);
  const Tensor other_cu_seqlens_k = Tensor::ints({0, 2, 5, 7});
  Inputs other = inputs;
  other.options.cu_seqlens_k = other_cu_seqlens_k;
  for (const std::string& implementation : all_implementations()) {
    const Results results = run(inputs, implementation);
    for (int64_t i = 0; i < 6; ++i) {
      EXPECT_EQ(results.lse.get({1, i}) == -kInf, i == 2 || i == 3) << implementation;
      EXPECT_EQ(results.out.get({i, 1, 4}) == 0, i == 2 || i == 3) << implementation;
    }
    // Joined with a part that has keys, the sequence gets the results of that part.
    const Results others = run(other, implementation);
    const auto both = [](const Tensor& first, const Tensor& second,
                         std::initializer_list<int64_t> shape) {
      std::vector<double> numbers = first.numbers();
      const std::vector<double> more = second.numbers();
      numbers.insert(numbers.end(), more.begin(), more.end());
      return Tensor::of(DType::kF32, shape, numbers);
    };
    const Tensor out_parts = both(results.out, others.out, {2, 6, 2, 8});
    const Tensor lse_parts = both(results.lse, others.lse, {2, 2, 6});
    const Tensor out(DType::kF32, {6, 2, 8}), lse(DType::kF32, {2, 6});
    attention_merge(out_parts, lse_parts, out, lse);
    for (int64_t n = 0; n < 2 * 2 * 8; ++n) {
      const int64_t i = 2 + n / 16, h = n / 8 % 2, d = n % 8;
      EXPECT_EQ(out.get({i, h, d}), others.out.get({i, h, d})) << implementation;
      EXPECT_EQ(lse.get({h, i}), others.lse.get({h, i})) << implementation;
    }
  }
}

// pytorch#124877
TEST(MaskedRows, ProductOfPaddingMasksOnTinyValues) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor q = Tensor::random(dtype, {2, 8, 4, 128}, 1, 1.0 / 256);
    const Tensor k = Tensor::random(dtype, {2, 16, 4, 128}, 2, 1.0 / 256);
    const Tensor v = Tensor::random(dtype, {2, 16, 4, 128}, 3, 1.0 / 256);
    const Tensor bias = Tensor::filled(dtype, {2, 1, 8, 16}, 0);
    for (int64_t i = 0; i < 8; ++i) {
      for (int64_t j = 0; j < 16; ++j) {
        if (j >= 7 || i >= 5) bias.set({0, 0, i, j}, -kInf);
        if (i == 2) bias.set({1, 0, i, j}, -kInf);
      }
    }
    Inputs inputs{q, k, v, q, {}};
    inputs.options.bias = bias;
    expect_all_conform(inputs);
    for (const std::string& implementation : all_implementations()) {
      const Results results = run(inputs, implementation);
      for (int64_t h = 0; h < 4; ++h) {
        expect_empty_row(results, 0, 6, h, implementation);
        expect_empty_row(results, 1, 2, h, implementation);
      }
    }
  }
}

// pytorch PR 196170
TEST(MaskedRows, RowLeftOutOfTheLossLeavesGradientsFinite) {
  const Tensor q = Tensor::random(DType::kF32, {2, 4, 1, 1}, 1);
  const Tensor k = Tensor::random(DType::kF32, {2, 4, 1, 1}, 2);
  const Tensor v = Tensor::random(DType::kF32, {2, 4, 1, 1}, 3);
  const Tensor dout = Tensor::filled(DType::kF32, {2, 4, 1, 1}, 1);
  const Tensor lengths = Tensor::ints({4, 2});
  dout.set({1, 3, 0, 0}, 0);
  Inputs inputs{q, k, v, dout, {}};
  inputs.options.window_left = 1;
  inputs.options.window_right = 0;
  inputs.options.query_offset = 0;
  inputs.options.seqused_k = lengths;
  expect_all_conform(inputs);
  Inputs without = inputs;
  without.q = q.view().sliced(1, 0, 3);
  without.dout = dout.view().sliced(1, 0, 3);
  for (const std::string& implementation : all_implementations()) {
    const Results results = run(inputs, implementation);
    expect_empty_row(results, 1, 3, 0, implementation);
    const Results shorter = run(without, implementation);
    for (int64_t j = 0; j < 4; ++j) {
      EXPECT_EQ(results.dk.get({1, j, 0, 0}), shorter.dk.get({1, j, 0, 0})) << implementation;
      EXPECT_EQ(results.dv.get({1, j, 0, 0}), shorter.dv.get({1, j, 0, 0})) << implementation;
    }
  }
}

// flash-attention#334, #1052
TEST(MaskedRows, LargeInputsHaveGradients) {
  const Tensor q = Tensor::random(DType::kF16, {1, 1, 1, 16}, 1, 3);
  const Tensor k = Tensor::random(DType::kF16, {1, 1, 1, 16}, 2, 3);
  const Tensor v = Tensor::random(DType::kF16, {1, 1, 1, 16}, 3, 3);
  const Tensor ones = Tensor::filled(DType::kF16, {1, 1, 1, 16}, 1);
  for (const std::string& implementation : all_implementations()) {
    const Results results = run({q, k, v, ones, {}}, implementation);
    EXPECT_TRUE(same_bits(results.dv, ones)) << implementation;
    for (int64_t d = 0; d < 16; ++d) {
      EXPECT_NEAR(results.dq.get({0, 0, 0, d}), 0, 0.05) << implementation;
      EXPECT_NEAR(results.dk.get({0, 0, 0, d}), 0, 0.05) << implementation;
    }
  }
}

TEST(MaskedRowsFull, LargeInputsOfOneThousandTokensHaveGradients) {
  Inputs inputs{Tensor::random(DType::kF16, {1, 1024, 1, 128}, 1, 3),
                Tensor::random(DType::kF16, {1, 1024, 1, 128}, 2, 3),
                Tensor::random(DType::kF16, {1, 1024, 1, 128}, 3, 3),
                Tensor::filled(DType::kF16, {1, 1024, 1, 128}, 1),
                {}};
  inputs.options.causal = true;
  expect_all_conform(inputs);
}

}  // namespace
}  // namespace flashtile::test
