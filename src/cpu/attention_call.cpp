// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention_call.hpp"

#include <limits>

namespace flashtile::cpu {

const OperandKernels& operands_of(const AttentionKernels& kernels, DType dtype) {
  const bool has_pairs = kernels.bf16_operands.fwd_block != nullptr;
  return dtype == DType::kBF16 && has_pairs ? kernels.bf16_operands : kernels.float_operands;
}

AttentionCall::AttentionCall(const AttentionProblem& problem, const AttentionArgs& args)
    : problem_(problem),
      args_(args),
      sequences_(attention_sequences(problem, args)),
      mask_(problem, args) {
  for (const Sequence& sequence : sequences_) {
    for (int64_t h = 0; h < problem.num_heads_kv; ++h) pairs_.push_back({&sequence, h});
  }
}

ScoreRules AttentionCall::rules(const Sequence& sequence, int64_t head,
                                const HeadMask& mask) const {
  ScoreRules rules{};
  rules.softmax_scale = static_cast<float>(problem_.softmax_scale);
  rules.softcap = static_cast<float>(problem_.softcap.value_or(0));
  rules.variables = {sequence.batch_idx,
                     head,
                     head / problem_.group_size(),
                     sequence.seqlen_q,
                     sequence.seqlen_k,
                     sequence.query_offset,
                     sequence.leftpad};
  if (args_.bias) {
    const Rows bias = bias_rows(args_.bias, sequence, head);
    rules.bias = bias.data;
    rules.bias_row_stride = bias.row_stride;
    rules.bias_key_stride = bias.element_stride;
    rules.bias_dtype = args_.bias.dtype;
  }
  if (problem_.has_alibi) {
    rules.has_alibi = true;
    rules.alibi_slope = alibi_slope(args_.alibi_slopes, sequence.batch_idx, head);
  }
  rules.position = mask.position();
  if (mask.block_list().is_given()) {
    rules.block_list = mask.block_list().listed();
    rules.block_rows = mask.block_list().block_rows();
    rules.block_cols = mask.block_list().block_cols();
    rules.num_block_cols = mask.block_list().num_cols();
  }
  const Dropout& dropout = problem_.dropout;
  rules.has_dropout = dropout.is_on;
  rules.dropout_threshold = dropout.threshold;
  rules.dropout_gain = static_cast<float>(dropout.gain);
  rules.dropout_seed = dropout.seed;
  rules.dropout_offset = dropout.offset;
  rules.batch_head = static_cast<uint32_t>(sequence.batch_idx * problem_.num_heads + head);
  rules.is_plain =
      !problem_.softcap && problem_.user_score.empty() && rules.bias == nullptr && !rules.has_alibi;
  return rules;
}

void AttentionCall::check_index_errors() const {}

}  // namespace flashtile::cpu
