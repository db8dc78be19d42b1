// SPDX-License-Identifier: Apache-2.0
//
// Alignment of causal masks and windows: reports from other libraries, as small inputs whose values
// are the identity, so that the output shows which keys are seen.
#include <gtest/gtest.h>

#include <algorithm>

#include "flashtile/error.hpp"
#include "flashtile/presets.hpp"
#include "support/attention_runs.hpp"

namespace flashtile::test {
namespace {

using Rows = std::vector<std::string>;

AttentionOptions causal() {
  AttentionOptions options;
  options.causal = true;
  return options;
}

AttentionOptions window(std::optional<int64_t> left, std::optional<int64_t> right) {
  AttentionOptions options;
  options.window_left = left;
  options.window_right = right;
  return options;
}

void expect_visible(int64_t seqlen_q, int64_t seqlen_k, const AttentionOptions& options,
                    const Rows& expected) {
  for (const std::string& implementation : all_implementations()) {
    EXPECT_EQ(visible_keys(seqlen_q, seqlen_k, options, implementation), expected)
        << implementation;
  }
}

// pytorch#108108, #144858, flash-attention#282
TEST(CausalAlignment, IsBottomRight) {
  expect_visible(2, 5, causal(), {"11110", "11111"});
  expect_visible(5, 2, causal(), {"00", "00", "00", "10", "11"});
  expect_visible(1, 7, causal(), {"1111111"});
  expect_visible(3, 3, causal(), {"100", "110", "111"});
}

TEST(CausalAlignment, IsTopLeftWithAnOffsetOfZero) {
  AttentionOptions options = causal();
  options.query_offset = 0;
  expect_visible(2, 5, options, {"10000", "11000"});
  expect_visible(5, 2, options, {"10", "11", "11", "11", "11"});
  expect_visible(1, 7, options, {"1000000"});
}

TEST(CausalAlignment, TakesAnyOffset) {
  AttentionOptions options = causal();
  options.query_offset = -2;
  expect_visible(4, 3, options, {"000", "000", "100", "110"});
  options.query_offset = 100;
  expect_visible(2, 3, options, {"111", "111"});
  options.query_offset = -100;
  expect_visible(2, 3, options, {"000", "000"});
}

// flash-attention#895
TEST(WindowBounds, VeryLargeOnesAreUnbounded) {
  const Rows all(8, "1111");
  expect_visible(8, 4, window({}, (int64_t{1} << 31) - 1), all);
  expect_visible(8, 4, window((int64_t{1} << 31) - 1, (int64_t{1} << 31) - 1), all);
  expect_visible(8, 4, window(int64_t{9000000000000000000}, int64_t{9000000000000000000}), all);
  expect_visible(8, 4, window({}, 4),
                 {"1000", "1100", "1110", "1111", "1111", "1111", "1111", "1111"});
}

// flash-attention#2574, PR 2624
TEST(WindowBounds, ZeroIsABound) {
  const Tensor q = Tensor::random(DType::kF32, {1, 5, 2, 16}, 1);
  const Tensor k = Tensor::random(DType::kF32, {1, 5, 2, 16}, 2);
  const Tensor v = Tensor::random(DType::kF32, {1, 5, 2, 16}, 3);
  for (const std::string& implementation : all_implementations()) {
    const Results results = run({q, k, v, {}, window(0, 0)}, implementation);
    EXPECT_TRUE(same_bits(results.out, v)) << implementation;
  }
  AttentionOptions options = causal();
  options.window_left = 3;
  expect_visible(5, 5, options, {"10000", "11000", "11100", "11110", "01111"});
}

// transformers#39408, PR 41228
TEST(WindowBounds, CountOtherKeys) {
  for (int64_t width = 0; width < 10; ++width) {
    AttentionOptions options = causal();
    options.window_left = width;
    for (const std::string& implementation : all_implementations()) {
      const Rows rows = visible_keys(10, 10, options, implementation);
      for (int64_t i = 0; i < 10; ++i) {
        const std::string& row = rows[static_cast<size_t>(i)];
        EXPECT_EQ(std::count(row.begin(), row.end(), '1'), std::min(i, width) + 1)
            << implementation << " width " << width << " row " << i;
      }
      // One query over the same cache is the last row.
      EXPECT_EQ(visible_keys(1, 10, options, implementation).front(), rows.back())
          << implementation << " width " << width;
    }
  }
}

// flash-attention#1116
TEST(WindowBounds, NegativeOnesAreErrorsThatNameThem) {
  const std::pair<AttentionOptions, std::string> cases[] = {
      {window(-1, -3), "attention_fwd: window_left is -1, expected at least 0"},
      {window(-2, 0), "attention_fwd: window_left is -2, expected at least 0"},
      {window({}, -7), "attention_fwd: window_right is -7, expected at least 0"},
  };
  for (const auto& [options, text] : cases) {
    for (const std::string& implementation : all_implementations()) {
      try {
        visible_keys(4, 4, options, implementation);
        ADD_FAILURE() << implementation << ": no error, expected " << text;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << implementation;
        EXPECT_EQ(error.what(), text) << implementation;
      }
    }
  }
}

// flash-attention#2199
TEST(WindowBounds, MayLeaveRowsEmpty) {
  const Tensor q = Tensor::random(DType::kF32, {1, 129, 1, 64}, 1);
  const Tensor k = Tensor::random(DType::kF32, {1, 32, 1, 64}, 2);
  const Tensor v = Tensor::random(DType::kF32, {1, 32, 1, 64}, 3);
  const Inputs inputs{q, k, v, q, window(32, 64)};
  expect_all_conform(inputs);
  for (const std::string& implementation : all_implementations()) {
    const Results results = run(inputs, implementation);
    for (int64_t i = 0; i < 129; ++i) {
      EXPECT_EQ(results.lse.get({0, 0, i}) == -kInf, i <= 32) << implementation << " row " << i;
    }
  }
}

/// Runs the same inputs with each list of options and expects the bits of the first.
void expect_same_bits(Inputs inputs, const std::vector<AttentionOptions>& spellings,
                      const std::string& implementation, const Context& context = one_worker()) {
  inputs.options = spellings.front();
  const Results expected = run(inputs, implementation, context);
  for (size_t n = 1; n < spellings.size(); ++n) {
    inputs.options = spellings[n];
    EXPECT_EQ(differing(run(inputs, implementation, context), expected), "")
        << implementation << " spelling " << n;
  }
}

void expect_same_bits(int64_t seqlen, const std::vector<AttentionOptions>& spellings) {
  const Inputs inputs{Tensor::random(DType::kBF16, {1, seqlen, 2, 16}, 1),
                      Tensor::random(DType::kBF16, {1, seqlen, 2, 16}, 2),
                      Tensor::random(DType::kBF16, {1, seqlen, 2, 16}, 3),
                      Tensor::random(DType::kBF16, {1, seqlen, 2, 16}, 4),
                      {}};
  for (const std::string& implementation : all_kernels()) {
    expect_same_bits(inputs, spellings, implementation);
  }
}

// flash-attention#1133
TEST(CausalAlignment, HasTheSameBitsInEverySpelling) {
  for (const int64_t seqlen : {64, 1000}) {
    AttentionOptions expression;
    expression.mask = presets::kCausal;
    AttentionOptions sliding;
    sliding.mask = presets::sliding_window(seqlen, 0);
    expect_same_bits(seqlen, {causal(), window({}, 0), window(seqlen, 0), window(seqlen - 1, 0),
                              expression, sliding});
  }
}

// flash-attention#1133, at its length; what a spelling means is settled before any kernel's choice.
TEST(CausalAlignmentFull, HasTheSameBitsInEverySpellingOfALongSequence) {
  const Tensor x = Tensor::random(DType::kBF16, {1, 16384, 1, 8}, 1);
  expect_same_bits({x, x, x, {}, {}}, {causal(), window({}, 0), window(16384, 0), window(16383, 0)},
                   all_kernels().front(), {});
}

TEST(WindowBounds, HaveTheSameBitsAsTheirExpression) {
  AttentionOptions expression;
  expression.mask = presets::sliding_window(100, 20);
  AttentionOptions params;
  params.mask = std::string(presets::kWindowLeft) + " && " + std::string(presets::kWindowRight);
  params.params = {{"window_left", 100}, {"window_right", 20}};
  expect_same_bits(500, {window(100, 20), expression, params});
}

}  // namespace
}  // namespace flashtile::test
