// SPDX-License-Identifier: Apache-2.0
//
// Where rounding adds up: long sums, peaked and flat softmax, large heads. The error of every
// implementation is at most twice that of a plain one in the same precision.
#include <gtest/gtest.h>

#include "support/attention_runs.hpp"
#include "support/problem_cases.hpp"

namespace flashtile::test {
namespace {

class AttentionAccuracyFull : public testing::TestWithParam<ProblemParam> {};

TEST_P(AttentionAccuracyFull, IsWithinTwiceThePlainError) {
  expect_problem_conforms(GetParam().text);
}

std::vector<ProblemParam> problems() {
  std::vector<std::string> texts;
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    for (const char* text : {
             ":b1:hq1:sq8:sk8192:d64:",
             ":b1:hq1:sq8:sk8192:d16:softmax_scale=4:",
             ":b1:hq1:sq8:sk8192:d16:softmax_scale=0.001:",
             ":b1:hq1:sq4096:sk9:d32:",
             ":b1:hq1:sq700:sk1300:d64:causal:",
             ":b1:hq1:sq33:sk1300:d256:softmax_scale=1:",
             ":b1:hq1:sq64:sk4096:d32:dropout_p=0.5:",
             ":b1:hq1:sq64:sk4096:d32:softcap=2:softmax_scale=3:",
         }) {
      texts.push_back(std::string(text) + dtype);
    }
  }
  return both_ways(texts);
}

INSTANTIATE_TEST_SUITE_P(Sums, AttentionAccuracyFull, testing::ValuesIn(problems()),
                         [](const testing::TestParamInfo<ProblemParam>& test) {
                           return test_name(test.param.text);
                         });

/// One key far above the others, in a late block: the running maximum moves by hundreds and what
/// was summed before has to fade without a trace.
TEST(AttentionAccuracy, LateMaximumOutweighsEverythingBefore) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const int64_t seqlen_k = 1000;
    const Tensor q = Tensor::filled(dtype, {1, 3, 1, 16}, 4);
    const Tensor k = Tensor::random(dtype, {1, seqlen_k, 1, 16}, 1);
    const Tensor v = Tensor::random(dtype, {1, seqlen_k, 1, 16}, 2);
    for (int64_t d = 0; d < 16; ++d) k.set({0, 900, 0, d}, 20);
    const Inputs inputs{q, k, v, Tensor::random(dtype, {1, 3, 1, 16}, 3), {}};
    expect_all_conform(inputs);
    for (const std::string& implementation : all_implementations()) {
      const Results results = run(inputs, implementation);
      for (int64_t d = 0; d < 16; ++d) {
        EXPECT_EQ(results.out.get({0, 2, 0, d}), v.get({0, 900, 0, d})) << implementation;
      }
      EXPECT_FLOAT_EQ(static_cast<float>(results.lse.get({0, 0, 2})), 320.0f) << implementation;
    }
  }
}

/// Logits around zero and logits around 10^4 give the same weights when they differ by a constant.
TEST(AttentionAccuracy, CommonShiftOfLogitsCancels) {
  const Tensor q = Tensor::random(DType::kF32, {1, 70, 2, 16}, 1);
  const Tensor k = Tensor::random(DType::kF32, {1, 300, 2, 16}, 2);
  const Tensor v = Tensor::random(DType::kF32, {1, 300, 2, 16}, 3);
  Inputs inputs{q, k, v, Tensor::random(DType::kF32, {1, 70, 2, 16}, 4), {}};
  const Tensor shift = Tensor::filled(DType::kF32, {1, 1, 1, 300}, 8192);
  for (const std::string& implementation : all_implementations()) {
    inputs.options.bias = {};
    const Results plain = run(inputs, implementation);
    inputs.options.bias = shift;
    const Results shifted = run(inputs, implementation);
    // Logits near 2^13 have steps of 2^-10.
    EXPECT_LT(max_difference(plain.out, shifted.out), 4e-3) << implementation;
    for (int64_t i = 0; i < 70; ++i) {
      EXPECT_NEAR(shifted.lse.get({0, 1, i}) - 8192, plain.lse.get({0, 1, i}), 2e-3)
          << implementation;
    }
  }
}

}  // namespace
}  // namespace flashtile::test
