// SPDX-License-Identifier: Apache-2.0
#include "default_problems.hpp"

#include <algorithm>
#include <string>

#include "op_runs.hpp"

namespace flashtile::cli {
namespace {

/// Attention, forward and backward: what stands behind "attention_fwd" and "attention_bwd".
constexpr const char* kCheckedBothWays[] = {
    ":b2:hq4:hkv2:sq67:sk131:d32",
    ":b2:hq4:hkv2:sq67:sk131:d64:causal:bf16",
    ":b1:hq4:hkv1:sq70:sk70:d80:dv48:causal:f16",
    ":b1:hq2:sq129:sk65:d40:causal",
    ":b1:hq2:sq1:sk300:d64",
    ":b2:hq2:sq0:sk5:d8",
    ":b2:hq2:sq5:sk0:d8",
    ":b1:hq3:hkv3:sq33:sk33:d1:dv3",
    ":b1:hq2:sq150:sk150:d32:window_left=17:window_right=5",
    ":b1:hq2:sq150:sk170:d32:attention_chunk=24:causal:bf16",
    ":b1:hq2:sq60:sk90:d16:causal:query_offset=11",
    ":b1:hq2:sq60:sk90:d16:softcap=7.5:softmax_scale=0.3",
    ":b2:hq4:sq60:sk90:d16:causal:alibi_slopes[b,hq]",
    ":b2:hq4:sq60:sk90:d16:alibi_slopes[hq]:bf16",
    ":b2:hq4:sq60:sk90:d16:bias[1,hq,sq,sk]",
    ":b2:hq4:sq60:sk90:d16:bias[b,1,1,sk]:f16",
    ":b2:hq4:sq60:sk90:d16:causal:sink",
    ":b3:hq4:hkv2:sq60:sk90:d16:seqused_k={90,0,41}:leftpad_k={3,0,7}",
    ":b3:hq4:hkv2:d24:cu_seqlens_q={0,33,33,90}:cu_seqlens_k={0,70,75,140}:causal",
    ":b2:hq4:hkv2:sq60:sk90:d16:dropout_p=0.2:dropout_seed=7:causal",
    ":b2:hq4:hkv2:sq60:sk90:d16:dropout_p=0.2:dropout_seed_tensor={-7}:causal:bf16",
    ":b1:hq2:sq96:sk96:d16:block_rows=16:block_cols=24:block_counts:block_indices",
    ":b2:hq2:sq90:sk90:d16:mask='(q_idx - k_idx) % 3 == 0 || k_idx < 4'",
    ":b2:hq4:sq60:sk90:d16:score='score * g[head] + t[q_idx - k_idx + 89]':aux.g[hq]:aux.t[160]",
    ":b2:hq4:hkv2:sq60:sk90:d16:softcap=9:bias[b,hq,sq,sk]:sink:window_left=30:dropout_p=0.1:bf16",
};

constexpr const char* kCheckedForward[] = {
    "attention_fwd:b3:hq4:hkv2:sq3:sk100:d32:block_table:ps16:seqused_k={100,17,64}:causal:bf16",
    "attention_fwd:b2:hq4:hkv2:sq2:sk100:d32:lines4:cache_batch_idx:seqused_k={100,33}",
    "attention_fwd:b1:hq2:sq40:sk50:d16:causal:out.f32:bf16",
    "attention_fwd:b2:hq4:hkv2:sq3:sk64:d32:sn3:k_new:v_new:seqused_k={40,0}:causal:bf16",
    ("attention_fwd:b2:hq4:hkv2:sq2:sk100:d32:block_table:ps16:sn2:k_new:v_new:"
     "seqused_k={98,17}:rotary_cos:rotary_sin:rp8:pos100:causal"),
    "attention_fwd:b1:hq2:sq40:sk50:d16:causal:max_logit:weights:dropout_mask:dropout_p=0.3",
};
constexpr const char* kBackwardOnly[] = {
    "attention_bwd:b2:hq4:sq60:sk90:d16:causal:dlse:sink",
};

constexpr const char* kBench[] = {
    "attention_fwd:b1:hq8:sq1024:d64",         "attention_fwd:b1:hq8:sq1024:d64:causal:bf16",
    "attention_fwd:b1:hq8:sq4096:d128:causal", "attention_fwd:b8:hq32:hkv8:sq1:sk4096:d128:bf16",
    "attention_bwd:b1:hq8:sq1024:d64:causal",
};

/// Small sizes for an op that nothing is known about: every written size is another prime.
std::vector<ProblemText> generic_problems(const OpSpec& spec) {
  constexpr int64_t kSizes[] = {2, 3, 67, 5, 7, 11, 13, 17};
  std::vector<ProblemText> problems;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const bool is_known =
        std::any_of(spec.tensors.begin(), spec.tensors.end(), [&](const TensorSpec& row) {
          return (" " + std::string(row.dtypes) + " ")
                     .find(" " + std::string(dtype_name(dtype)) + " ") != std::string::npos;
        });
    if (!is_known) continue;
    ProblemText problem;
    problem.spec = &spec;
    problem.dtype = dtype;
    size_t next = 0;
    for (const DimSpec& dim : spec.dims) {
      if (dim.code.empty() || !dim.default_from.empty()) continue;
      problem.sizes[std::string(dim.name)] = kSizes[next++ % std::size(kSizes)];
    }
    problems.push_back(problem);
  }
  return problems;
}

}  // namespace

std::vector<ProblemText> default_check_problems() {
  std::vector<ProblemText> problems;
  for (const OpSpec* spec : all_ops()) {
    const bool is_forward = spec->name == "attention_fwd";
    if (!is_forward && spec->name != "attention_bwd") {
      for (ProblemText& problem : generic_problems(*spec)) problems.push_back(std::move(problem));
      continue;
    }
    for (const char* text : kCheckedBothWays) {
      problems.push_back(parse_problem(std::string(spec->name) + text));
    }
    if (is_forward) {
      for (const char* text : kCheckedForward) problems.push_back(parse_problem(text));
    } else {
      for (const char* text : kBackwardOnly) problems.push_back(parse_problem(text));
    }
  }
  return problems;
}

std::vector<ProblemText> default_bench_problems() {
  std::vector<ProblemText> problems;
  for (const char* text : kBench) problems.push_back(parse_problem(text));
  return problems;
}

ProblemText with_forward_results(const ProblemText& problem) {
  ProblemText result = problem;
  const OpSpec* backward = backward_of(*problem.spec);
  if (backward == nullptr) return result;
  for (const TensorSpec& row : problem.spec->tensors) {
    const bool is_missing = row.direction == Direction::kOut && !row.required &&
                            result.find_tensor(row.name) == nullptr;
    if (!is_missing || !is_forward_result(*backward, row.name)) continue;
    TensorItem item;
    item.name = std::string(row.name);
    result.tensors.push_back(item);
  }
  return result;
}

}  // namespace flashtile::cli
