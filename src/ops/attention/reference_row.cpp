// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/reference_row.hpp"

#include <cmath>
#include <limits>

#include "core/fail.hpp"
#include "variant/philox.hpp"

namespace flashtile {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

std::vector<double> read_keys(const TensorView& tensor, const TensorView& scales,
                              const AttentionArgs& args, const Sequence& sequence, int64_t head_kv,
                              int64_t dim) {
  std::vector<double> values =
      read_rows(key_rows(tensor, args, sequence, head_kv), sequence.seqlen_k, dim, tensor.dtype);
  const KeyScales scale = key_scales(scales, tensor, args, sequence, head_kv);
  if (scale.data == nullptr) return values;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] *= static_cast<double>(scale.of(static_cast<int64_t>(i) / dim));
  }
  return values;
}

ReferenceHead::ReferenceHead(const AttentionProblem& problem, const AttentionArgs& args,
                             const AttentionVariant& variant, const Sequence& sequence,
                             int64_t head)
    : problem_(problem),
      queries_(read_rows(query_rows(args.q, sequence, head), sequence.seqlen_q, problem.head_dim,
                         problem.dtype)),
      keys_(read_keys(args.k, args.k_scale, args, sequence, head / problem.group_size(),
                      problem.head_dim)),
      values_(read_keys(args.v, args.v_scale, args, sequence, head / problem.group_size(),
                        problem.head_dim_v)),
      block_list_(args, sequence.batch_idx, head),
      score_(variant.score, bound_aux(variant.score, args), bound_params(variant.score, args)),
      mask_(variant.mask, bound_aux(variant.mask, args), bound_params(variant.mask, args)),
      variables_(attention_variables(problem, sequence, head)),
      head_(head),
      sink_(problem.has_sink ? element<float>(args.sink, {head}) : -kInfinity) {}

variant::Variables ReferenceHead::variables_at(int64_t q_idx, int64_t k_idx, double scaled) const {
  variant::Variables variables = variables_;
  variables.q_idx = q_idx;
  variables.k_idx = k_idx;
  variables.score = scaled;
  return variables;
}

bool ReferenceHead::sees(int64_t q_idx, int64_t k_idx) {
  if (!block_list_.sees(q_idx, k_idx)) return false;
  return mask_.truth(variables_at(q_idx, k_idx, 0));
}

double ReferenceHead::keep_factor(int64_t q_idx, int64_t k_idx) const {
  const Dropout& dropout = problem_.dropout;
  if (!dropout.is_on) return 1;
  const auto batch_head = static_cast<uint32_t>(variables_.batch * problem_.num_heads + head_);
  const uint32_t bits =
      variant::dropout_bits(dropout.seed, dropout.offset, batch_head, static_cast<uint32_t>(q_idx),
                            static_cast<uint32_t>(k_idx));
  return bits < dropout.threshold ? 0 : dropout.gain;
}

void ReferenceHead::check_indices(const variant::Evaluator& evaluator) const {
  const variant::IndexError* error = evaluator.index_error();
  if (error == nullptr) return;
  fail(attention_op_name(problem_.is_backward), "an expression reads ", error->aux, " at ",
       error->index, " in dimension ", error->dimension, ", which has size ", error->size);
}

void ReferenceHead::compute(int64_t q_idx, ReferenceRow* row) {
  const auto num_keys = static_cast<size_t>(variables_.seqlen_k);
  row->is_seen.assign(num_keys, 0);
  row->scaled.assign(num_keys, 0);
  row->logit.assign(num_keys, -kInfinity);
  row->probability.assign(num_keys, 0);
  row->keep.assign(num_keys, 1);

  const double* q = query(q_idx);
  row->max_logit = -kInfinity;
  for (size_t j = 0; j < num_keys; ++j) {
    const auto k_idx = static_cast<int64_t>(j);
    row->is_seen[j] = sees(q_idx, k_idx);
    if (row->is_seen[j] == 0) continue;
    const double* k = key(k_idx);
    double dot = 0;
    for (int64_t d = 0; d < problem_.head_dim; ++d) dot += q[d] * k[d];
    row->scaled[j] = dot * problem_.softmax_scale;
    row->logit[j] = score_.number(variables_at(q_idx, k_idx, row->scaled[j]));
    row->keep[j] = keep_factor(q_idx, k_idx);
    if (row->logit[j] > row->max_logit) row->max_logit = row->logit[j];
  }
  check_indices(mask_);
  check_indices(score_);

  double highest = row->max_logit;
  if (sink_ > highest) highest = sink_;
  if (highest == -kInfinity) highest = 0;
  double sum = std::exp(sink_ - highest);
  for (size_t j = 0; j < num_keys; ++j) {
    if (row->is_seen[j] != 0) sum += std::exp(row->logit[j] - highest);
  }
  row->lse = sum == 0 ? -kInfinity : highest + std::log(sum);
  row->sink_probability = sum == 0 ? 0 : std::exp(sink_ - highest) / sum;
  for (size_t j = 0; j < num_keys; ++j) {
    if (row->is_seen[j] != 0 && sum != 0) {
      row->probability[j] = std::exp(row->logit[j] - highest) / sum;
    }
  }
}

}  // namespace flashtile
