// SPDX-License-Identifier: Apache-2.0
//
// Every option by itself and in company, on every implementation, against the reference in double.
#include <gtest/gtest.h>

#include "support/problem_cases.hpp"

namespace flashtile::test {
namespace {

std::string name_of(const testing::TestParamInfo<ProblemParam>& test) {
  return test_name(test.param.text);
}

const std::vector<std::string> kQuick = {
    ":b1:hq2:sq150:sk150:d32:window_left=17:window_right=5",
    ":b1:hq2:sq60:sk90:d16:causal:softcap=7.5:softmax_scale=0.3:bf16",
    ":b2:hq4:sq60:sk90:d16:causal:alibi_slopes[b,hq]",
    ":b2:hq4:hkv2:sq60:sk90:d16:bias[1,hq,sq,sk]:sink:causal:f16",
    ":b3:hq4:hkv2:d24:cu_seqlens_q={0,33,33,90}:cu_seqlens_k={0,70,75,140}:causal",
    ":b2:hq4:hkv2:sq60:sk90:d16:dropout_p=0.2:dropout_seed=7:causal",
    ":b1:hq2:sq96:sk96:d16:block_rows=16:block_cols=24:block_counts[b,hq,6]:"
    "block_indices[b,hq,6,4]",
};

const std::vector<std::string> kMasks = {
    ":b1:hq2:sq150:sk170:d16:window_left=0:window_right=0",
    ":b1:hq2:sq150:sk170:d16:window_left=0:bf16",
    ":b1:hq2:sq150:sk170:d16:window_right=3:f16",
    ":b1:hq2:sq150:sk170:d16:causal:window_left=64",
    ":b1:hq2:sq129:sk32:d16:window_left=32:window_right=64",
    ":b1:hq2:sq129:sk32:d16:causal",
    ":b1:hq2:sq500:sk700:d16:causal:window_left=130:bf16",
    ":b1:hq2:sq700:sk500:d16:causal:window_left=130",
    ":b1:hq2:sq300:sk300:d16:window_left=1000:window_right=2147483647",
    ":b1:hq2:sq150:sk170:d16:attention_chunk=24:causal:bf16",
    ":b1:hq2:sq150:sk170:d16:attention_chunk=1",
    ":b1:hq2:sq300:sk330:d16:attention_chunk=128:window_left=50",
    ":b1:hq2:sq150:sk170:d16:attention_chunk=1000000:f16",
    ":b1:hq2:sq60:sk90:d16:causal:query_offset=11",
    ":b1:hq2:sq60:sk90:d16:causal:query_offset=-30",
    ":b1:hq2:sq60:sk90:d16:causal:query_offset=-200",
    ":b1:hq2:sq60:sk90:d16:causal:query_offset=500:bf16",
    ":b1:hq2:sq60:sk90:d16:attention_chunk=32:query_offset=-45",
    ":b1:hq2:sq60:sk90:d16:window_left=9:window_right=4:query_offset=7:f16",
    ":b1:hq2:sq300:sk500:d16:block_rows=64:block_cols=128:block_counts[1,1,5]:"
    "block_indices[1,1,5,4]",
    ":b2:hq4:hkv2:sq130:sk150:d16:block_rows=33:block_cols=7:block_counts[b,1,4]:"
    "block_indices[b,1,4,22]:bf16",
    ":b1:hq4:hkv2:sq130:sk150:d16:block_rows=1:block_cols=1:block_counts[1,hq,130]:"
    "block_indices[1,hq,130,60]:causal",
    ":b1:hq2:sq100:sk200:d16:block_rows=128:block_cols=32:block_counts[1,1,1]:"
    "block_indices[1,1,1,7]:window_left=90:f16",
};

const std::vector<std::string> kScores = {
    ":b1:hq2:sq70:sk150:d16:softmax_scale=0",
    ":b1:hq2:sq70:sk150:d16:softmax_scale=-0.7:causal",
    ":b1:hq2:sq70:sk150:d16:softmax_scale=3:bf16",
    ":b1:hq2:sq70:sk150:d16:softcap=0.5:f16",
    ":b1:hq2:sq70:sk150:d16:softcap=30:causal:bf16",
    ":b1:hq2:sq70:sk150:d16:softcap=1e30",
    ":b2:hq6:hkv2:sq70:sk150:d16:alibi_slopes[hq]:bf16",
    ":b2:hq6:hkv2:sq70:sk150:d16:alibi_slopes[b,hq]:window_left=40:f16",
    ":b2:hq6:hkv2:sq70:sk150:d16:alibi_slopes[hq]:query_offset=-3",
    ":b2:hq6:hkv2:sq150:sk70:d16:alibi_slopes[b,hq]:causal",
    ":b2:hq4:hkv2:sq70:sk150:d16:sink:bf16",
    ":b2:hq4:hkv2:sq150:sk70:d16:sink:causal",
    ":b2:hq4:hkv2:sq70:sk0:d16:sink",
    ":b2:hq4:hkv2:sq70:sk150:d16:sink:window_left=3:window_right=0:f16",
};

/// The bias in every form that it may be broadcast from, with its gradient.
std::vector<std::string> biases() {
  std::vector<std::string> texts;
  int n = 0;
  const char* const dtypes[] = {"f32", "bf16", "f16"};
  for (const char* batch : {"b", "1"}) {
    for (const char* heads : {"hq", "1"}) {
      for (const char* rows : {"sq", "1"}) {
        const std::string shape = std::string(batch) + "," + heads + "," + rows + ",sk";
        texts.push_back(":b2:hq6:hkv2:sq131:sk197:d16:bias[" + shape + "]:" + dtypes[n++ % 3]);
        texts.push_back(":b2:hq4:hkv4:sq70:sk43:d16:causal:bias[" + shape + "]:" + dtypes[n++ % 3]);
      }
    }
  }
  texts.emplace_back(":b2:hq2:sq70:sk43:d16:bias.f32[b,hq,sq,sk]:f16");
  texts.emplace_back(":b2:hq2:sq70:sk43:d16:bias.f32[1,1,1,sk]:bf16");
  texts.emplace_back(":b2:hq2:sq70:sk43:d16:bias.bf16[b,hq,sq,sk]:f32");
  texts.emplace_back(":b1:hq2:sq1:sk43:d16:bias[b,hq,sq,sk]");
  texts.emplace_back(":b1:hq1:sq1:sk1:d16:bias[b,hq,sq,sk]:bf16");
  return texts;
}

const std::vector<std::string> kDropout = {
    ":b2:hq4:hkv2:sq150:sk300:d16:dropout_p=0.1:dropout_seed=123456789012345",
    ":b2:hq4:hkv2:sq70:sk90:d16:dropout_p=0.5:dropout_offset=4294967295:bf16",
    ":b2:hq4:hkv2:sq70:sk90:d16:dropout_p=0.99999:dropout_seed=1:causal",
    ":b2:hq4:hkv2:sq70:sk33:d16:dropout_p=0.3:dropout_seed=18446744073709551615:f16",
    ":b1:hq2:sq33:sk129:d16:dropout_p=1e-16",
    ":b2:hq4:hkv2:sq150:sk300:d16:dropout_p=0.1:dropout_seed_tensor={123456789012345}",
    ":b2:hq4:hkv2:sq150:sk300:d64:dropout_p=0.1:dropout_seed_tensor={-1}:bf16",
};

const std::vector<std::string> kSequences = {
    ":hq4:hkv2:d16:cu_seqlens_q={0,1,1,2}:cu_seqlens_k={0,3,3,8}:causal:bf16",
    ":hq4:hkv2:d16:cu_seqlens_q={0,0,0,0}:cu_seqlens_k={0,5,5,9}",
    ":hq4:hkv2:d16:cu_seqlens_q={0,5,5,9}:cu_seqlens_k={0,0,0,0}",
    ":hq2:d16:cu_seqlens_q={0,76,110,256}:cu_seqlens_k={0,1,2,3}:causal:f16",
    ":hq4:hkv1:d32:cu_seqlens_q={0,200,263,400}:cu_seqlens_k={0,130,390,1000}:causal:bf16",
    ":hq4:hkv1:d32:cu_seqlens_q={0,129,190}:cu_seqlens_k={0,129,190}:window_left=20",
    ":hq2:d16:cu_seqlens_q={0,33,70}:cu_seqlens_k={0,33,90}:tq90:tk100",
    ":hq2:d16:cu_seqlens_q={0}:cu_seqlens_k={0}",
    ":b3:hq2:d16:sk70:cu_seqlens_q={0,33,33,90}",
    ":b3:hq2:d16:sq70:cu_seqlens_k={0,33,33,90}",
    ":b3:hq4:hkv2:sq60:sk90:d16:seqused_k={90,0,41}:leftpad_k={3,0,7}",
    ":b3:hq4:hkv2:sq60:sk200:d16:seqused_k={200,1,139}:causal:bf16",
    ":b3:hq4:hkv2:sq60:sk200:d16:leftpad_k={0,199,200}:causal:f16",
    ":hq2:d16:cu_seqlens_q={0,33,70}:cu_seqlens_k={0,33,190}:seqused_k={20,157}:leftpad_k={1,0}",
};

/// What has no backward.
const std::vector<std::string> kStored = {
    ":b3:hq4:hkv2:sq3:sk100:d32:block_table:page_size=1:seqused_k={100,17,64}:causal:bf16",
    ":b3:hq4:hkv2:sq70:sk150:d32:block_table:page_size=3:seqused_k={150,0,64}",
    ":b3:hq4:hkv2:sq3:sk500:d32:block_table:page_size=16:seqused_k={500,17,64}:causal:f16",
    ":b3:hq4:hkv2:sq3:sk700:d32:block_table:page_size=300:seqused_k={700,17,301}:causal",
    ":b2:hq4:hkv2:sq3:sk100:d32:block_table[b,9]:np20:page_size=16:seqused_k={100,33}",
    ":b2:hq4:hkv2:sq40:sk160:d32:block_table:page_size=16:leftpad_k={3,20}:seqused_k={150,77}:"
    "causal",
    ":hq4:hkv2:sk96:d32:block_table:page_size=16:cu_seqlens_q={0,40,41,43}:"
    "seqused_k={96,70,2}:causal:bf16",
    ":hq4:hkv2:sk300:d32:block_table:page_size=3:cu_seqlens_q={0,1,200,200}:"
    "seqused_k={300,250,17}:causal",
    ":b2:hq4:hkv2:sq2:sk100:d32:lines5:cache_batch_idx:seqused_k={100,33}",
    ":b3:hq4:hkv2:sq140:sk160:d32:lines3:cache_batch_idx:leftpad_k={0,4,160}:causal:bf16",
    // Values are the first columns of keys.
    ":b2:hq4:hkv2:sq40:sk100:d40:dv24:v=k:causal:bf16",
    ":b2:hq16:hkv1:sq2:sk300:d576:dv512:v=k:causal:bf16",
    ":b2:hq80:hkv1:sq1:sk200:d576:dv512:block_table:page_size=16:v=k:seqused_k={200,77}:sink:bf16",
    ":b1:hq4:hkv2:sq70:sk150:d320:dv200:v=k:window_left=40:window_right=9:max_logit:f16",
    ":hq2:hkv1:d512:dv256:cu_seqlens_q={0,5,5,9}:cu_seqlens_k={0,100,160,300}:v=k:causal:bf16",
    ":b1:hq2:hkv1:sq10:sk200:d576:dv512:v=k:softcap=30:alibi_slopes[hq]:mask='k_idx % 3 != 1':bf16",
    ":b1:hq2:sq40:sk150:d16:causal:out.f32:bf16",
    ":b1:hq2:sq40:sk150:d16:causal:out.f32:f16",
    ":b2:hq4:hkv2:sq40:sk150:d16:causal:max_logit:weights:dropout_mask:dropout_p=0.3",
    ":b2:hq4:hkv2:sq40:sk150:d16:max_logit:weights:dropout_mask:sink:bf16",
    ":b2:hq4:hkv2:sq70:sk60:d16:causal:max_logit:weights:leftpad_k={5,0}:seqused_k={40,60}:f16",
    ":b2:hq4:hkv2:sq20:sk0:d16:max_logit",
};

const std::vector<std::string> kBackward = {
    "attention_bwd:b2:hq4:hkv2:sq60:sk90:d16:causal:dlse:sink",
    "attention_bwd:b2:hq4:hkv2:sq90:sk60:d16:causal:dlse:bf16",
    "attention_bwd:hq4:hkv2:d16:cu_seqlens_q={0,33,70}:cu_seqlens_k={0,33,90}:dlse:f16",
    "attention_bwd:b2:hq4:hkv2:sq60:sk90:d16:causal:dq=none",
    "attention_bwd:b2:hq4:hkv2:sq60:sk90:d16:causal:dk=none:bf16",
    "attention_bwd:b2:hq4:hkv2:sq60:sk90:d16:causal:dv=none:dq=none:f16",
    "attention_bwd:b2:hq4:hkv2:sq60:sk90:d16:bias[b,hq,sq,sk]:dq=none:dk=none:dv=none",
    "attention_bwd:b2:hq4:hkv2:sq60:sk90:d16:bias[b,hq,sq,sk]:dbias=none",
    "attention_bwd:b2:hq4:hkv2:sq60:sk90:d16:out.f32:dout.f32:bf16",
    "attention_bwd:b1:hq2:sq60:sk90:d16:causal:deterministic",
};

const std::vector<std::string> kTogether = {
    ":b2:hq4:hkv2:sq60:sk90:d16:softcap=9:bias[b,hq,sq,sk]:sink:window_left=30:dropout_p=0.1:bf16",
    ":b2:hq4:hkv2:sq60:sk190:d16:softcap=9:dropout_p=0.3:causal",
    ":b2:hq4:hkv2:sq60:sk190:d16:softcap=9:alibi_slopes[hq]:attention_chunk=32:f16",
    ":b2:hq4:hkv2:sq60:sk190:d16:alibi_slopes[b,hq]:bias[1,hq,1,sk]:dropout_p=0.2:sink",
    ":hq4:hkv2:d16:cu_seqlens_q={0,33,33,90}:cu_seqlens_k={0,70,75,140}:bias[b,hq,sq,sk]:causal",
    ":hq4:hkv2:d16:cu_seqlens_q={0,33,33,90}:cu_seqlens_k={0,70,75,140}:bias[1,hq,sq,sk]:bf16",
    ":hq4:hkv2:d16:cu_seqlens_q={0,33,33,90}:cu_seqlens_k={0,70,75,140}:bias[b,1,1,sk]:sink",
    ":hq4:hkv2:d16:cu_seqlens_q={0,33,33,90}:cu_seqlens_k={0,70,75,140}:alibi_slopes[b,hq]:"
    "dropout_p=0.1:softcap=5:window_left=20:f16",
    ":b2:hq4:hkv2:sq60:sk90:d16:seqused_k={90,41}:leftpad_k={3,7}:bias[b,hq,sq,sk]:causal",
    ":b2:hq4:hkv2:sq60:sk90:d16:seqused_k={80,41}:leftpad_k={3,7}:bias[1,1,sq,sk]:bf16",
    ":b2:hq4:hkv2:sq60:sk90:d16:leftpad_k={3,7}:dropout_p=0.25:alibi_slopes[hq]:sink",
    ":b2:hq4:hkv2:sq96:sk96:d16:block_rows=16:block_cols=24:block_counts[b,hq,6]:"
    "block_indices[b,hq,6,4]:causal:softcap=20:dropout_p=0.1:bias[b,hq,sq,sk]:f16",
    ":b2:hq4:hkv2:sq96:sk96:d16:block_rows=16:block_cols=24:block_counts[b,1,6]:"
    "block_indices[1,hq,6,4]:sink:alibi_slopes[hq]",
    ":b1:hq2:sq200:sk290:d16:attention_chunk=64:causal:window_left=20:sink:bias[1,1,1,sk]:bf16",
};

const std::vector<std::string> kForwardTogether = {
    ":b3:hq4:hkv2:sq3:sk100:d32:block_table:page_size=16:seqused_k={100,17,64}:alibi_slopes[hq]:"
    "causal:bf16",
    ":b3:hq4:hkv2:sq30:sk100:d32:block_table:page_size=3:seqused_k={100,17,64}:"
    "bias[b,hq,sq,102]:dropout_p=0.2",
    ":b3:hq4:hkv2:sq3:sk100:d32:block_table:page_size=16:seqused_k={100,17,64}:window_left=20:"
    "sink:softcap=10:f16",
    ":b2:hq4:hkv2:sq70:sk100:d32:block_table:page_size=16:block_rows=16:block_cols=24:"
    "block_counts[1,1,5]:block_indices[1,1,5,4]:attention_chunk=40",
    ":b2:hq4:hkv2:sq2:sk100:d32:lines5:cache_batch_idx:alibi_slopes[b,hq]:sink:softcap=4",
    ":hq4:hkv2:sk96:d32:block_table:page_size=16:cu_seqlens_q={0,40,41,43}:seqused_k={96,70,2}:"
    "alibi_slopes[b,hq]:sink:window_left=33:max_logit:bf16",
};

class AttentionOptions : public testing::TestWithParam<ProblemParam> {};
TEST_P(AttentionOptions, AgreesWithReference) { expect_problem_conforms(GetParam().text); }
INSTANTIATE_TEST_SUITE_P(Quick, AttentionOptions, testing::ValuesIn(both_ways(kQuick)), name_of);

std::vector<ProblemParam> as_written(const std::vector<std::string>& texts) {
  std::vector<ProblemParam> params;
  for (const std::string& text : texts) params.push_back({text});
  return params;
}

class AttentionOptionsFull : public testing::TestWithParam<ProblemParam> {};
TEST_P(AttentionOptionsFull, AgreesWithReference) { expect_problem_conforms(GetParam().text); }
#define FLASHTILE_OPTIONS(name, params) \
  INSTANTIATE_TEST_SUITE_P(name, AttentionOptionsFull, testing::ValuesIn(params), name_of)
FLASHTILE_OPTIONS(Masks, both_ways(kMasks));
FLASHTILE_OPTIONS(Scores, both_ways(kScores));
FLASHTILE_OPTIONS(Biases, both_ways(biases()));
FLASHTILE_OPTIONS(Dropout, both_ways(kDropout));
FLASHTILE_OPTIONS(Sequences, both_ways(kSequences));
FLASHTILE_OPTIONS(Stored, forward_only(kStored));
FLASHTILE_OPTIONS(Backward, as_written(kBackward));
FLASHTILE_OPTIONS(Together, both_ways(kTogether));
FLASHTILE_OPTIONS(ForwardTogether, forward_only(kForwardTogether));
#undef FLASHTILE_OPTIONS

}  // namespace
}  // namespace flashtile::test
