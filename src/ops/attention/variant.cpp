// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/variant.hpp"

#include <algorithm>

#include "flashtile/presets.hpp"
#include "variant/expr/parse.hpp"
#include "variant/expr/substitute.hpp"
#include "variant/position_mask.hpp"

namespace flashtile {
namespace {

using variant::AuxSignature;
using variant::Expr;

/// A preset that reads its own tensors and scalars: their names get the leading dot.
Expr built_in(Expr expr) {
  for (AuxSignature& aux : expr.aux) aux.name = "." + aux.name;
  for (std::string& param : expr.params) param = "." + param;
  return expr;
}

Expr built_in_mask(std::string_view text, std::span<const AuxSignature> aux = {}) {
  return built_in(variant::parse_mask(text, aux));
}

Expr built_in_score(std::string_view text, std::span<const AuxSignature> aux = {}) {
  return built_in(variant::parse_score(text, aux));
}

/// "bias[batch, head, q_idx, k_idx + leftpad]" with 0 for broadcast dimensions.
std::string bias_element(const TensorView& bias) {
  const auto index = [&](size_t dim, const char* name) {
    return std::string(bias.shape[dim] == 1 ? "0" : name);
  };
  return "bias[" + index(0, "batch") + ", " + index(1, "head") + ", " + index(2, "q_idx") +
         ", k_idx + leftpad]";
}

}  // namespace

std::vector<Expr> built_in_masks(const AttentionProblem& problem) {
  std::vector<Expr> masks;
  if (problem.window_left) masks.push_back(built_in_mask(presets::kWindowLeft));
  if (problem.window_right) masks.push_back(built_in_mask(presets::kWindowRight));
  if (problem.attention_chunk) masks.push_back(built_in_mask(presets::kChunk));
  return masks;
}

AttentionVariant attention_variant(const AttentionProblem& problem, const AttentionArgs& args) {
  AttentionVariant result;
  result.score = variant::parse_score("score", {});
  const auto then = [&](const Expr& next) { result.score = variant::compose(next, result.score); };
  const AuxSignature bias[] = {{"bias", 4, true}};
  const AuxSignature slopes[] = {{"slopes", args.alibi_slopes.ndim, true}};
  if (problem.softcap) then(built_in_score(presets::kSoftcap));
  if (!problem.user_score.empty()) then(problem.user_score);
  if (args.bias) then(built_in_score("score + " + bias_element(args.bias), bias));
  if (problem.has_alibi) {
    then(built_in_score(
        args.alibi_slopes.ndim == 2 ? presets::kAlibiBatchHeads : presets::kAlibiHeads, slopes));
  }

  std::vector<Expr> masks = built_in_masks(problem);
  if (!problem.user_mask.empty()) masks.push_back(problem.user_mask);
  if (args.bias) masks.push_back(built_in_mask(bias_element(args.bias) + " != -1.0 / 0.0", bias));
  result.mask = masks.empty() ? variant::parse_mask("1", {}) : variant::conjunction(masks);
  return result;
}

const TensorView& aux_tensor(std::string_view name, const AttentionArgs& args) {
  if (name == kAuxBias) return args.bias;
  if (name == kAuxSlopes) return args.alibi_slopes;
  return std::find_if(args.aux.begin(), args.aux.end(),
                      [&](const AuxTensor& aux) { return aux.name == name; })
      ->tensor;
}

std::vector<TensorView> bound_aux(const Expr& expr, const AttentionArgs& args) {
  KeptList<TensorView> tensors;
  find_aux(expr, args, &tensors);
  return {tensors.begin(), tensors.end()};
}

void find_aux(const Expr& expr, const AttentionArgs& args, KeptList<TensorView>* tensors) {
  tensors->clear();
  for (const AuxSignature& signature : expr.aux) {
    tensors->push_back(aux_tensor(signature.name, args));
  }
}

std::vector<double> bound_params(const Expr& expr, const AttentionArgs& args) {
  // Window bounds are exact in a double up to 2^53; a larger one sees everything either way.
  static constexpr int64_t kLargest = variant::PositionMask::kUnbounded;
  const auto whole = [](const std::optional<int64_t>& value) {
    return static_cast<double>(std::min(value.value_or(0), kLargest));
  };
  std::vector<double> values;
  for (const std::string& name : expr.params) {
    double value = 0;
    if (name == ".softcap") value = args.softcap.value_or(0);
    if (name == ".window_left") value = whole(args.window_left);
    if (name == ".window_right") value = args.causal ? 0 : whole(args.window_right);
    if (name == ".chunk") value = whole(args.attention_chunk);
    for (const ScalarParam& param : args.params) {
      if (param.name == name) value = param.value;
    }
    values.push_back(value);
  }
  return values;
}

TensorView aux_gradient(const std::string& name, const AttentionArgs& args) {
  if (name == kAuxBias) return args.dbias;
  if (name == kAuxSlopes) return args.dalibi_slopes;
  for (const AuxTensor& aux : args.aux) {
    if (aux.name == name) return aux.gradient;
  }
  return {};
}

variant::Variables attention_variables(const AttentionProblem& problem, const Sequence& sequence,
                                       int64_t head) {
  variant::Variables variables;
  variables.batch = sequence.batch_idx;
  variables.head = head;
  variables.head_kv = head / problem.group_size();
  variables.seqlen_q = sequence.seqlen_q;
  variables.seqlen_k = sequence.seqlen_k;
  variables.query_offset = sequence.query_offset;
  variables.leftpad = sequence.leftpad;
  return variables;
}

}  // namespace flashtile
