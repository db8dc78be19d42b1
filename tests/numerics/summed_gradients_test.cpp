// SPDX-License-Identifier: Apache-2.0
//
// Gradients that are sums over many keys: of slopes, sinks, a bias that rows share, aux tensors. An
// error in a row's delta does not average out over its keys there, so what `out` has lost by
// rounding to 16 bits may not enter. Judged against double precision, for many random inputs.
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

}  // namespace
}  // namespace flashtile::test
