// SPDX-License-Identifier: Apache-2.0
//
// Few query blocks, many keys: a prefill whose keys are split.
#include <gtest/gtest.h>

#include "core/problem_text.hpp"
#include "flashtile/explain.hpp"
#include "support/attention_runs.hpp"
#include "support/problem_cases.hpp"

namespace flashtile::test {
namespace {

bool has_splits(const std::string& text) {
  return explain(text).plan.find("splits 1,") == std::string::npos;
}

// The splits of 2100 keys begin at key blocks 0, 5 or 9, 8 or 17 ...; some see nothing of them.
const std::vector<std::string> kTexts = {
    ":b1:hq2:hkv1:sq20:sk2100:d32:causal:max_logit",
    ":b1:hq2:hkv1:sq100:sk2100:d32:dv40:sink:bf16",
    ":b1:hq3:hkv3:sq17:sk4200:d16:window_left=300:window_right=5:sink:f16",
    ":b1:hq1:sq300:sk2100:d16:query_offset=-100:causal",
    ":b1:hq2:sq40:sk2100:d16:dropout_p=0.3:dropout_seed=7:softcap=5:bf16",
    ":b1:hq2:sq40:sk2100:d16:alibi_slopes:bias[1,hq,1,sk]:causal:out.f32:bf16",
    ":b1:hq2:hkv1:sq40:sk2100:d16:aux.t[2200]:score='score + t[k_idx - q_idx + 40]':"
    "mask='k_idx > 1500 || k_idx % 3 == 0'",
    ":b2:hq1:sq20:sk2100:d16:leftpad_k={100,3}:seqused_k={2000,40}",
    ":hq1:d16:cu_seqlens_q={0,20,20,60}:cu_seqlens_k={0,2100,2200,2250}:max_logit:f16",
    ":b1:hq2:hkv1:sq20:sk2100:d32:block_table:page_size=16:causal:bf16",
    ":b1:hq2:sq50:sk2050:d16:block_rows=25:block_cols=50:block_counts[1,hq,2]:"
    "block_indices[1,hq,2,41]",
};

class KeySplits : public testing::TestWithParam<ProblemParam> {};
TEST_P(KeySplits, AgreeWithReference) {
  const std::string& text = GetParam().text;
  if (test_context().device.type == DeviceType::kCpu) {
    for (const std::string& kernel : all_kernels()) EXPECT_TRUE(has_splits(text + "@" + kernel));
  }
  expect_problem_conforms(text);
}
INSTANTIATE_TEST_SUITE_P(Texts, KeySplits, testing::ValuesIn(forward_only(kTexts)),
                         [](const auto& test) { return test_name(test.param.text); });

TEST(KeySplitsPlan, AreForFewQueryBlocksAndManyKeys) {
  for (const std::string& kernel : all_kernels()) {
    for (const char* text :
         {"attention_fwd:hq8:sq96:sk9000:d64", "attention_fwd:hq1:sq96:sk2000:d64",
          "attention_fwd:hq1:sq96:sk9000:d64:batch_invariant",
          "attention_fwd:hq1:sq96:sk9000:d64:weights"}) {
      EXPECT_FALSE(has_splits(text + ("@" + kernel))) << text;
    }
  }
}

/// What masks hide may hold anything, also where a split sees none of its keys.
TEST(KeySplitsValues, NanOfHiddenKeysIsNotRead) {
  const Tensor q = Tensor::random(DType::kF32, {1, 20, 2, 16}, 1);
  for (const std::string& kernel : all_kernels()) {
    const Tensor k = Tensor::random(DType::kF32, {1, 2100, 1, 16}, 2);
    const Tensor v = Tensor::random(DType::kF32, {1, 2100, 1, 16}, 3);
    Inputs inputs{q, k, v, {}, {}};
    inputs.options.window_left = 900;
    inputs.options.window_right = 0;
    const Results expected = run(inputs, kernel);
    // Query 0 has position 2080.
    for (int64_t j = 0; j < 2080 - 900; ++j) {
      k.set({0, j, 0, 3}, kNan);
      v.set({0, j, 0, 5}, kNan);
    }
    EXPECT_EQ(differing(run(inputs, kernel), expected), "") << kernel;
  }
}

}  // namespace
}  // namespace flashtile::test
