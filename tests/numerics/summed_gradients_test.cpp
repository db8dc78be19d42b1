// SPDX-License-Identifier: Apache-2.0
//
// Gradients that are sums over many keys: of slopes, sinks, a bias that rows share, aux tensors. An
// error in a row's delta does not average out over its keys there, so what `out` has lost by
// rounding to 16 bits may not enter, nor what a long sum in float32 loses. Judged against double
// precision, for many random inputs.
#include <gtest/gtest.h>

#include "support/problem_cases.hpp"

namespace flashtile::test {
namespace {

std::vector<ProblemParam> problems(const std::string& sizes) {
  std::vector<ProblemParam> params;
  for (const char* dtype : {"f16", "bf16"}) {
    for (const char* text : {
             ":alibi_slopes[hq]:",
             ":causal:alibi_slopes[b,hq]:dropout_p=0.25:",
             ":sink:softmax_scale=0.05:",
             ":sink:window_left=40:dlse:",
             ":bias[1,hq,1,sk]:",
             ":bias.f32[b,hq,sq,sk]:",
             ":score='score + t[head] * (k_idx - q_idx) * 0.01':aux.t.f32[hq]:softcap=20:",
             ":score='score + t[head]':aux.t.f32[hq]:mask='k_idx % 3 != q_idx % 3 ? 1 : 0':",
         }) {
      params.push_back({"attention_bwd" + sizes + text + dtype});
    }
  }
  return params;
}

std::string name_of(const testing::TestParamInfo<ProblemParam>& test) {
  return test_name(test.param.text);
}

class SummedGradients : public testing::TestWithParam<ProblemParam> {};

TEST_P(SummedGradients, AreWithinTwiceThePlainError) {
  for (uint64_t seed = 1; seed <= 6; ++seed) expect_problem_conforms(GetParam().text, seed);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SummedGradients,
                         testing::ValuesIn(problems(":b2:hq2:hkv1:sq37:sk140:d32")), name_of);

class SummedGradientsFull : public testing::TestWithParam<ProblemParam> {};

TEST_P(SummedGradientsFull, AreWithinTwiceThePlainError) {
  for (uint64_t seed = 1; seed <= 40; ++seed) expect_problem_conforms(GetParam().text, seed);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SummedGradientsFull,
                         testing::ValuesIn(problems(":b1:hq2:sq64:sk300:d64")), name_of);

/// Float32 gradients of one number, or few: sums of terms that cancel.
class FewNumbers : public testing::TestWithParam<const char*> {};

TEST_P(FewNumbers, AreWithinTwiceThePlainErrorAndTheFloor) {
  for (uint64_t seed = 1; seed <= 60; ++seed) expect_problem_conforms(GetParam(), seed);
}

INSTANTIATE_TEST_SUITE_P(
    Seeds, FewNumbers,
    testing::Values("attention_bwd:b1:hq1:sq1:sk1:d64:bias[1,1,1,1]",
                    "attention_bwd:b2:hq2:sq5:sk1:d16:bias[1,1,1,1]",
                    "attention_bwd:b1:hq1:sq100:sk1:d16:bias[1,1,1,1]",
                    "attention_bwd:b2:hq2:sq5:sk7:d3:score='score * s[0]':aux.s[1]",
                    "attention_bwd:b1:hq2:sq40:sk60:d16:score='score * s':aux.s[]",
                    "attention_bwd:b1:hq2:sq40:sk60:d16:score='score + s':aux.s[]",
                    "attention_bwd:b1:hq2:sq40:sk60:d16:score='score * s + s * s':aux.s[]:dlse",
                    "attention_bwd:b1:hq1:sq40:sk60:d16:alibi_slopes",
                    "attention_bwd:b1:hq1:sq40:sk60:d16:sink"),
    [](const testing::TestParamInfo<const char*>& test) { return std::to_string(test.index); });

/// Thousands of rows or planes that share a bias: a float32 sum of them would lose digits.
TEST(SharedBiasGradients, AreSummedInMoreThanFloat) {
  for (const char* text : {"attention_bwd:b2:hq8:sq500:sk3:d8:bias[1,1,1,sk]",
                           "attention_bwd:b1:hq2:sq4000:sk3:d8:bias[1,hq,1,sk]",
                           "attention_bwd:b250:hq8:sq3:sk5:d8:bias[1,1,sq,sk]"}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) expect_problem_conforms(text, seed);
  }
}

}  // namespace
}  // namespace flashtile::test
