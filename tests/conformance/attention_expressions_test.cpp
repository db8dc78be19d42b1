// SPDX-License-Identifier: Apache-2.0
//
// Score and mask expressions on every implementation, with gradients of what they read: each class
// of access (scalar, row, column, diagonal, small table, general), each function, each operator.
#include <gtest/gtest.h>

#include "support/problem_cases.hpp"

namespace flashtile::test {
namespace {

std::string name_of(const testing::TestParamInfo<ProblemParam>& test) {
  return std::to_string(test.index) + "_" + test_name(test.param.text);
}

const std::vector<std::string> kQuick = {
    ":b2:hq2:sq60:sk190:d16:score='score * s':aux.s[]:mask='k_idx < 60 * n + "
    "q_idx':aux.n.i32[]:bf16",
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score * gain[head] + table[q_idx - k_idx + 189]':"
    "aux.gain[hq]:aux.table[250]",
    ":b2:hq2:sq190:sk190:d16:mask='(q_idx - k_idx) % 3 == 0 || k_idx < 4':bf16",
    ":b2:hq4:hkv2:sq130:sk150:d16:score='score - t[head, k_idx - q_idx + 129]':aux.t[hq,279]:"
    "softcap=5:alibi_slopes[hq]:bf16",
    ":b1:hq2:sq300:sk300:d16:causal:window_left=30:score='score + t[q_idx - k_idx]':aux.t[31]",
    ":b1:hq2:sq60:sk90:d16:causal:score='gate[0] > 0.0 ? score : score * 0.5':aux.gate[1]:f16",
};

/// One access class of an aux tensor each.
const std::vector<std::string> kAccess = {
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score * s[0]':aux.s[1]:bf16",
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score + gain[batch, head] * float(k_idx)':"
    "aux.gain[b,hq]:f16",
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score + gain[head_kv]':aux.gain[hkv]:causal",
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score * row[batch, q_idx]':aux.row[b,sq]",
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score + row[head, q_idx] * float(k_idx % 5)':"
    "aux.row[hq,sq]:bf16",
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score * col[k_idx]':aux.col[sk]:f16",
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score + col[batch, head, k_idx]':aux.col[b,hq,sk]:causal",
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score + d[k_idx - q_idx + seqlen_q - 1]':aux.d[249]",
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score * d[head, q_idx - k_idx + seqlen_k - 1]':"
    "aux.d[hq,249]:bf16",
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score + t[(q_idx * 7 + k_idx * 3) % 11]':aux.t[11]",
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score + t[min(abs(q_idx - k_idx), 31), head]':"
    "aux.t[32,hq]:f16",
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score + g[batch, head, q_idx, k_idx]':aux.g[b,hq,sq,sk]",
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score * g[q_idx, k_idx]':aux.g[sq,sk]:bf16",
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score + g[q_idx, (k_idx * 5) % seqlen_k]':aux.g[sq,sk]",
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score + emb[ids[q_idx], ids[k_idx]]':aux.emb[4,4]:"
    "aux.ids.i32[sk]",
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score + emb[ids[batch, k_idx], head]':aux.emb[4,hq]:"
    "aux.ids.i64[b,sk]:f16",
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score * a[head] + a[k_idx % 4] * a[0]':aux.a[hq]",
};

const std::vector<std::string> kScores = {
    ":b1:hq2:sq60:sk190:d16:score='score * 0.5 + 1.0'",
    ":b1:hq2:sq60:sk190:d16:score='0.0 * score'",
    ":b1:hq2:sq60:sk190:d16:score='-score':causal:bf16",
    ":b1:hq2:sq60:sk190:d16:score='score * param.t + param.u':param.t=0.7:param.u=-3",
    ":b1:hq2:sq60:sk190:d16:score='exp(score * 0.3)'",
    ":b1:hq2:sq60:sk190:d16:score='log(score * score + 1.0) + log2(abs(score) + 2)':f16",
    ":b1:hq2:sq60:sk190:d16:score='tanh(score) * 3.0 + sigmoid(score)':bf16",
    ":b1:hq2:sq60:sk190:d16:score='sin(score) + cos(score * 2)'",
    ":b1:hq2:sq60:sk190:d16:score='sqrt(score > 0 ? score + 1 : 1.0)'",
    ":b1:hq2:sq60:sk190:d16:score='pow(abs(score) + 0.5, 1.5)':f16",
    ":b1:hq2:sq60:sk190:d16:score='min(score, 0.75) + max(score, -0.25)'",
    ":b1:hq2:sq60:sk190:d16:score='score + floor(float(q_idx) / 7.0) * 0.1'",
    ":b1:hq2:sq60:sk190:d16:score='k_idx > 0 ? score + 0.1 * log(float(k_idx)) : score'",
    ":b1:hq2:sq60:sk190:d16:score='score + 0.01 * float((q_idx ^ k_idx) & 15 | (k_idx << 1) >> 3)'",
    ":b1:hq2:sq60:sk190:d16:score='score + 0.05 * float(floormod(q_idx - k_idx, 7) - "
    "floordiv(q_idx - k_idx, 9) + (q_idx - k_idx) / 5 + (q_idx - k_idx) % 4)':bf16",
    ":b2:hq4:sq60:sk190:d16:score='select(head % 2 == 0, score, 0.5 * score) - "
    "0.01 * float(head * abs(q_idx + query_offset - k_idx) + batch + seqlen_k - seqlen_q)'",
    ":b1:hq2:sq60:sk190:d16:score='w[head] > 0.0 || k_idx < 3 ? score * w[head] : tanh(score)':"
    "aux.w[hq]",
    ":b1:hq2:sq60:sk190:d16:score='score / (1.0 + w[head] * w[head]) - exp(w[head])':aux.w[hq]:f16",
};

const std::vector<std::string> kMasks = {
    ":b1:hq2:sq60:sk190:d16:mask='1'",
    ":b1:hq2:sq60:sk190:d16:mask='0'",
    ":b1:hq2:sq300:sk300:d16:mask='k_idx <= q_idx'",
    ":b1:hq2:sq300:sk400:d16:mask='k_idx <= q_idx + query_offset && q_idx + query_offset - k_idx < "
    "90':bf16",
    ":b2:hq2:sq300:sk300:d16:mask='k_idx < prefix[batch] * 60 || k_idx <= q_idx':aux.prefix.i32[b]",
    ":b1:hq2:sq300:sk300:d16:mask='doc[q_idx] == doc[k_idx] && k_idx <= q_idx':aux.doc.i32[sk]:f16",
    ":b1:hq2:sq500:sk500:d16:mask='(k_idx < 4 || q_idx - k_idx <= 60) && k_idx <= q_idx'",
    ":b1:hq2:sq300:sk300:d16:mask='k_idx <= q_idx && (q_idx - k_idx) % 5 == 0'",
    ":b1:hq4:sq200:sk200:d16:mask='head % 2 == 0 ? k_idx <= q_idx : abs(q_idx - k_idx) < 20'",
    ":b1:hq2:sq200:sk300:d16:mask='q_idx / 48 == k_idx / 48':bf16",
    ":b1:hq2:sq200:sk300:d16:mask='k_idx > q_idx + 5 && k_idx < 30'",
    ":b1:hq2:sq100:sk200:d16:mask='m[q_idx, k_idx] > 0.3':aux.m[sq,sk]",
    ":b1:hq2:sq100:sk200:d16:mask='(q_idx ^ k_idx) & 16':f16",
    ":b2:hq2:sq200:sk200:d16:mask='abs(q_idx - k_idx) < width[head] * 30':aux.width.i32[hq]",
    ":b1:hq2:sq100:sk200:d16:mask='q_idx % 3 != 0 && k_idx != 77 || k_idx == 3'",
    ":b1:hq2:sq100:sk200:d16:mask='float(k_idx) < param.limit':param.limit=100.5",
};

const std::vector<std::string> kTogether = {
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score * g[head]':aux.g[hq]:softcap=5:bias[1,hq,sq,sk]:"
    "alibi_slopes[b,hq]:sink:causal",
    ":b2:hq4:hkv2:sq60:sk190:d16:score='score + r[q_idx - k_idx + seqlen_k - 1]':aux.r[249]:"
    "dropout_p=0.2:window_left=70:bf16",
    ":b2:hq4:hkv2:sq60:sk190:d16:mask='k_idx % 3 != 1':causal:window_left=70:sink:f16",
    ":b2:hq4:hkv2:sq60:sk190:d16:mask='k_idx % 3 != 1':attention_chunk=64:bias[b,1,1,sk]",
    ":hq4:hkv2:d16:cu_seqlens_q={0,33,33,90}:cu_seqlens_k={0,70,75,140}:"
    "score='score + t[batch, head] * float(k_idx)':aux.t[3,hq]:mask='k_idx <= q_idx + "
    "query_offset'",
    ":hq4:hkv2:d16:cu_seqlens_q={0,33,33,90}:cu_seqlens_k={0,70,75,140}:"
    "score='score + d[q_idx - k_idx + 70]':aux.d[130]:causal:sink:f16",
    ":b2:hq4:hkv2:sq60:sk90:d16:seqused_k={90,41}:leftpad_k={3,7}:score='score + c[k_idx]':"
    "aux.c[sk]:mask='(q_idx + k_idx) % 4 != 0':bf16",
    ":b1:hq2:sq96:sk96:d16:block_rows=16:block_cols=24:block_counts[b,hq,6]:"
    "block_indices[b,hq,6,4]:mask='k_idx % 2 == 0':score='score * g[head]':aux.g[hq]",
    ":b1:hq2:sq1025:sk1025:d16:causal:score='score + 0.01 * float(q_idx - k_idx)':bf16",
    ":b1:hq2:sq70:sk1100:d16:mask='k_idx < 10 || k_idx > 1000':score='score + c[k_idx]':aux.c[sk]",
};

const std::vector<std::string> kStored = {
    ":b3:hq4:hkv2:sq3:sk100:d32:block_table:page_size=16:seqused_k={100,17,64}:"
    "score='score + s[head] * float(k_idx)':aux.s[hq]:mask='k_idx % 7 != 2':bf16",
    ":hq4:hkv2:sk96:d32:block_table:page_size=16:cu_seqlens_q={0,40,41,43}:"
    "seqused_k={96,70,2}:score='score - 0.01 * float(q_idx + query_offset - k_idx)':causal",
    ":b2:hq4:hkv2:sq2:sk100:d32:lines5:cache_batch_idx:mask='k_idx >= batch * 5':"
    "score='score * score'",
    ":b2:hq4:hkv2:sq20:sk60:d16:mask='k_idx % 3 == 0':score='score + 1.0':max_logit:weights:"
    "dropout_mask:dropout_p=0.3",
};

const std::vector<ProblemParam> kSomeGradients = {
    {"attention_bwd:b1:hq2:sq40:sk50:d16:score='score + t[q_idx, k_idx]':aux.t[sq,sk]:daux.t=none"},
    {"attention_bwd:b1:hq2:sq40:sk150:d16:score='score + t[k_idx] * u[head]':aux.t[sk]:aux.u[hq]:"
     "daux.t=none:dq=none:dk=none:dv=none"},
    {"attention_bwd:b1:hq2:sq40:sk150:d16:mask='m[k_idx] > 0.0':aux.m[sk]"},
    {"attention_bwd:b1:hq2:sq40:sk150:d16:score='1 ? score * t[head] : unread[0]':aux.t[hq]:"
     "aux.unread[5]:dlse"},
};

class AttentionExpressions : public testing::TestWithParam<ProblemParam> {};
TEST_P(AttentionExpressions, AgreeWithReference) { expect_problem_conforms(GetParam().text); }
INSTANTIATE_TEST_SUITE_P(Quick, AttentionExpressions, testing::ValuesIn(both_ways(kQuick)),
                         name_of);

class AttentionExpressionsFull : public testing::TestWithParam<ProblemParam> {};
TEST_P(AttentionExpressionsFull, AgreeWithReference) { expect_problem_conforms(GetParam().text); }
#define FLASHTILE_EXPRESSIONS(name, params) \
  INSTANTIATE_TEST_SUITE_P(name, AttentionExpressionsFull, testing::ValuesIn(params), name_of)
FLASHTILE_EXPRESSIONS(Access, both_ways(kAccess));
FLASHTILE_EXPRESSIONS(Scores, both_ways(kScores));
FLASHTILE_EXPRESSIONS(Masks, both_ways(kMasks));
FLASHTILE_EXPRESSIONS(Together, both_ways(kTogether));
FLASHTILE_EXPRESSIONS(SomeGradients, kSomeGradients);
FLASHTILE_EXPRESSIONS(Stored, forward_only(kStored));
#undef FLASHTILE_EXPRESSIONS

}  // namespace
}  // namespace flashtile::test
