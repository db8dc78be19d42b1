// SPDX-License-Identifier: Apache-2.0
//
// Where tensors lie changes no bit and nothing around them: guard pages on either side, gaps full
// of NaN, permuted, reversed and stretched dimensions, starts that no wide load may use.
#include <gtest/gtest.h>

#include "op_runs.hpp"
#include "support/attention_runs.hpp"
#include "support/laid_out_call.hpp"
#include "support/problem_cases.hpp"

namespace flashtile::test {
namespace {

/// Dimensions with heads outside of rows, where a tensor has both.
std::vector<int> heads_first(const TensorView& tensor) {
  if (tensor.ndim == 4) return {0, 2, 1, 3};
  if (tensor.ndim == 3) return {1, 0, 2};
  return {};
}

/// The last dimension outermost.
std::vector<int> last_first(const TensorView& tensor) {
  std::vector<int> order;
  if (tensor.ndim == 0) return order;
  order.push_back(tensor.ndim - 1);
  for (int d = 0; d + 1 < tensor.ndim; ++d) order.push_back(d);
  return order;
}

struct NamedLayout {
  const char* name;
  Layout (*of)(std::string_view name, const TensorView& tensor);
};
void PrintTo(const NamedLayout& layout, std::ostream* stream) { *stream << layout.name; }

using Placement::kStartsAtGuard;

Layout mixed(std::string_view name, const TensorView& tensor);

const std::vector<NamedLayout> kLayouts = {
    {"EndsAtGuard", [](std::string_view, const TensorView&) { return Layout{}; }},
    {"StartsAtGuard",
     [](std::string_view, const TensorView&) { return Layout{.placement = kStartsAtGuard}; }},
    {"HeadsFirst",
     [](std::string_view, const TensorView& t) { return Layout{.order = heads_first(t)}; }},
    {"LastDimOutermost",
     [](std::string_view, const TensorView& t) { return Layout{.order = last_first(t)}; }},
    {"Reversed",
     [](std::string_view, const TensorView&) {
       return Layout{.is_reversed = true, .gap = 1, .placement = kStartsAtGuard};
     }},
    {"OddGapsAndStart",
     [](std::string_view, const TensorView&) { return Layout{.gap = 3, .shift = 1}; }},
    {"Stretched",
     [](std::string_view, const TensorView&) { return Layout{.step = 3, .shift = 1}; }},
    {"Mixed", mixed},
};

/// Each tensor another of those.
Layout mixed(std::string_view name, const TensorView& tensor) {
  size_t hash = 5;
  for (const char c : name) hash = hash * 31 + static_cast<unsigned char>(c);
  return kLayouts[hash % (kLayouts.size() - 1)].of(name, tensor);
}

std::vector<ProblemParam> problems() {
  std::vector<ProblemParam> params = both_ways({
      ":b2:hq4:hkv2:sq70:sk150:d24:causal",
      ":b2:hq4:hkv2:sq70:sk150:d33:dv17:causal:bf16",
      ":b1:hq2:hkv1:sq5:sk131:d64:window_left=50:f16",
      ":b2:hq4:hkv2:sq60:sk90:d16:bias[b,hq,sq,sk]:sink:alibi_slopes[b,hq]:softcap=9",
      ":b2:hq4:hkv2:sq60:sk90:d16:bias[1,hq,1,sk]:dropout_p=0.2:bf16",
      ":b2:hq2:sq60:sk90:d16:bias[b,1,sq,sk]:f16",
      ":hq4:hkv2:d16:cu_seqlens_q={0,33,33,90}:cu_seqlens_k={0,70,75,140}:causal:sink:bf16",
      ":b2:hq4:hkv2:sq60:sk90:d16:seqused_k={80,41}:leftpad_k={3,7}",
      ":b1:hq2:sq96:sk96:d16:block_rows=16:block_cols=24:block_counts[b,hq,6]:"
      "block_indices[b,hq,6,4]:f16",
      ":b2:hq2:sq60:sk90:d16:score='score * g[head] + t[q_idx - k_idx + 89] + r[batch, q_idx]':"
      "aux.g[hq]:aux.t[149]:aux.r[b,sq]:mask='k_idx % 5 != ids[q_idx]':aux.ids.i32[sq]",
  });
  for (const char* text : {
           ":b3:hq4:hkv2:sq3:sk100:d24:block_table:page_size=7:seqused_k={100,17,64}:bf16",
           ":b2:hq4:hkv2:sq20:sk100:d16:lines5:cache_batch_idx:seqused_k={100,33}:out.f32:f16",
           ":b2:hq2:sq20:sk60:d16:causal:max_logit:weights:dropout_mask:dropout_p=0.3",
       }) {
    params.push_back({std::string("attention_fwd:lse") + text});
  }
  params.push_back({"attention_bwd:b2:hq4:hkv2:sq60:sk90:d16:causal:sink:dlse"});
  return params;
}

using Param = std::tuple<ProblemParam, NamedLayout>;

void expect_same_bits(const Param& param) {
  const auto& [problem, layout] = param;
  const cli::OwnedCall owned = random_problem_call(problem.text);
  for (const std::string& implementation : owned.call.spec().implementations()) {
    const cli::OwnedCall plain = cli::with_own_outputs(owned.call);
    cli::run_forward_of(plain.call, "reference", one_worker());
    const LaidOutCall laid_out(plain.call, layout.of);
    ASSERT_EQ(cli::run_forced(plain.call, implementation, one_worker()).text, "");
    ASSERT_EQ(cli::run_forced(laid_out.call(), implementation, one_worker()).text, "");
    EXPECT_EQ(differing_outputs(plain.call, laid_out.call()), "") << implementation;
    EXPECT_EQ(laid_out.damage(), "") << implementation;
  }
}

std::string name_of(const testing::TestParamInfo<Param>& test) {
  return std::to_string(test.index) + "_" + std::get<1>(test.param).name + "_" +
         test_name(std::get<0>(test.param).text);
}

class AttentionLayout : public testing::TestWithParam<Param> {};
TEST_P(AttentionLayout, ChangesNoBitAndTouchesNothingElse) { expect_same_bits(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Mixed, AttentionLayout,
                         testing::Combine(testing::ValuesIn(problems()),
                                          testing::Values(kLayouts.back())),
                         name_of);

class AttentionLayoutFull : public testing::TestWithParam<Param> {};
TEST_P(AttentionLayoutFull, ChangesNoBitAndTouchesNothingElse) { expect_same_bits(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Grid, AttentionLayoutFull,
                         testing::Combine(testing::ValuesIn(problems()),
                                          testing::ValuesIn(kLayouts.begin(), kLayouts.end() - 1)),
                         name_of);

}  // namespace
}  // namespace flashtile::test
