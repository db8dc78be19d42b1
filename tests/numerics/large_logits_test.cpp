// SPDX-License-Identifier: Apache-2.0
//
// The backward in float32 where logits, and with them the rounding of lse, are large.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/attention_runs.hpp"
#include "support/problem_cases.hpp"

namespace flashtile::test {
namespace {

/// A row with one key gives it weight 1, whatever the logit: dv is dout, and no gradient passes to
/// the scores.
TEST(LargeLogits, OfOneKeyLeaveItsWeightOne) {
  for (const double scale : {3.0, 30.0, 300.0, -300.0}) {
    Inputs inputs{Tensor::random(DType::kF32, {1, 1, 32, 64}, 1),
                  Tensor::random(DType::kF32, {1, 1, 32, 64}, 2),
                  Tensor::random(DType::kF32, {1, 1, 32, 64}, 3),
                  Tensor::random(DType::kF32, {1, 1, 32, 64}, 4),
                  {}};
    inputs.options.softmax_scale = scale;
    for (const std::string& implementation : all_kernels()) {
      const Results results = run(inputs, implementation);
      double largest_lse = 0;
      for (const double lse : results.lse.numbers()) {
        largest_lse = std::max(largest_lse, std::abs(lse));
      }
      EXPECT_GT(largest_lse, 10 * std::abs(scale));
      EXPECT_LE(max_difference(results.dv, inputs.dout), 3e-6) << implementation << " " << scale;
    }
  }
}

class LargeLogits : public testing::TestWithParam<const char*> {};

TEST_P(LargeLogits, KeepTheBackwardAsExactAsAPlainOne) { expect_problem_conforms(GetParam()); }

constexpr const char* kProblems[] = {
    "attention_bwd:hq8:sq1:sk1:d64:softmax_scale=3",
    "attention_bwd:b3:sq2:sk2:d64:hq8:softmax_scale=10:causal",
    "attention_bwd:hq4:sq8:sk20:d64:softmax_scale=30:causal",
    "attention_bwd:hq2:sq100:d64:softmax_scale=100:causal:sink",
    "attention_bwd:hq4:hkv2:sq150:sk300:d32:softmax_scale=30:window_left=20:dropout_p=0.2",
    "attention_bwd:hq4:hkv2:sq40:sk60:d32:softmax_scale=30:bias[1,1,sq,sk]:alibi_slopes:sink",
    "attention_bwd:hq2:sq40:sk60:d32:softmax_scale=30:score='score + t[k_idx]':aux.t[sk]:dlse",
    "attention_bwd:hq4:cu_seqlens_q={0,1,70,100}:cu_seqlens_k={0,3,80,210}:d64:softmax_scale=50",
};

INSTANTIATE_TEST_SUITE_P(Problems, LargeLogits, testing::ValuesIn(kProblems),
                         [](const testing::TestParamInfo<const char*>& test) {
                           return std::to_string(test.index);
                         });

/// The gradients of each half of the keys, with out and lse of all of them, are those of the whole:
/// there weights add up to less than 1, and that is no rounding.
TEST(LargeLogits, OfAPartOfTheKeysWithTheLseOfAll) {
  const Tensor q = Tensor::random(DType::kF32, {1, 40, 2, 64}, 1);
  const Tensor k = Tensor::random(DType::kF32, {1, 60, 2, 64}, 2);
  const Tensor v = Tensor::random(DType::kF32, {1, 60, 2, 64}, 3);
  const Tensor dout = Tensor::random(DType::kF32, {1, 40, 2, 64}, 4);
  for (const double scale : {1.0, 3.0}) {
    Inputs whole{q, k, v, dout, {}};
    whole.options.softmax_scale = scale;
    for (const std::string& implementation : all_kernels()) {
      const Results expected = run(whole, implementation);
      const Tensor dk(DType::kF32, {1, 60, 2, 64});
      const Tensor dv(DType::kF32, {1, 60, 2, 64});
      const Tensor dq[2] = {Tensor(DType::kF32, {1, 40, 2, 64}),
                            Tensor(DType::kF32, {1, 40, 2, 64})};
      Context context = one_worker();
      context.implementation = implementation;
      for (int64_t half = 0; half < 2; ++half) {
        const auto part = [half](const Tensor& tensor) {
          return tensor.view().sliced(1, 30 * half, 30 * half + 30);
        };
        attention_bwd(dout, q, part(k), part(v), expected.out, expected.lse,
                      dq[static_cast<size_t>(half)], part(dk), part(dv), whole.options, context);
      }
      const std::vector<double> first = dq[0].numbers();
      const std::vector<double> second = dq[1].numbers();
      const std::vector<double> both = expected.dq.numbers();
      double error = 0;
      for (size_t i = 0; i < both.size(); ++i) {
        error = std::max(error, std::abs(first[i] + second[i] - both[i]));
      }
      EXPECT_LE(error, 2e-4 * scale) << implementation;
      EXPECT_LE(max_difference(dk, expected.dk), 2e-4 * scale) << implementation;
      EXPECT_LE(max_difference(dv, expected.dv), 1e-4) << implementation;
    }
  }
}

}  // namespace
}  // namespace flashtile::test
