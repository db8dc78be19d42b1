// SPDX-License-Identifier: Apache-2.0
#include "cpu/score_programs.hpp"

#include <algorithm>

#include "ops/attention/variant.hpp"
#include "variant/expr/builder.hpp"
#include "variant/expr/derivative.hpp"
#include "variant/expr/paths.hpp"
#include "variant/expr/substitute.hpp"

namespace flashtile::cpu {
namespace {

using variant::Expr;
using variant::ExprBuilder;

/// Every mask of a problem but block lists and bias, with bounds as whole numbers: the programs'
/// scalars are float32.
std::optional<Expr> guard_mask(const AttentionProblem& problem, const AttentionArgs& args) {
  std::vector<Expr> masks;
  for (const Expr& mask : built_in_masks(problem)) {
    masks.push_back(variant::with_whole_params(mask, bound_params(mask, args)));
  }
  if (!problem.user_mask.empty()) masks.push_back(problem.user_mask);
  if (masks.empty()) return std::nullopt;
  return variant::conjunction(masks);
}

/// mask ? score expression : score.
Expr guarded(const Expr& score, const Expr& mask) {
  ExprBuilder builder;
  const ExprBuilder::Id condition = builder.import(mask);
  const ExprBuilder::Id value = builder.import(score);
  return builder.build(
      builder.select(condition, value, builder.variable(variant::Variable::kScore)));
}

/// Row-major number of an element of a tensor of this shape.
Expr flat_index(const std::vector<Expr>& index, const TensorView& target) {
  ExprBuilder builder;
  ExprBuilder::Id flat = builder.int_const(0);
  for (size_t d = 0; d < index.size(); ++d) {
    flat = builder.add(builder.mul(flat, builder.int_const(target.shape[d])),
                       builder.import(index[d]));
  }
  return builder.build(flat);
}

/// The roots of a gradient program and its sites.
std::vector<Expr> gradient_roots(const Expr& score, const AttentionArgs& args,
                                 std::vector<GradientSite>* sites) {
  std::vector<Expr> roots = {score, variant::derivative_score(score)};
  for (const variant::LoadSite& site : variant::load_gradients(score)) {
    const std::string& name = score.aux[static_cast<size_t>(site.aux_idx)].name;
    const auto aux = std::find_if(args.aux.begin(), args.aux.end(),
                                  [&](const AuxTensor& each) { return each.name == name; });
    if (aux == args.aux.end() || !aux->gradient) continue;
    roots.push_back(site.active);
    roots.push_back(site.derivative);
    roots.push_back(flat_index(site.index, aux->gradient));
    const variant::AccessClass access = variant::access_class(site.index);
    sites->push_back(
        {static_cast<size_t>(aux - args.aux.begin()),
         access == variant::AccessClass::kScalar || access == variant::AccessClass::kRow});
  }
  return roots;
}

}  // namespace

CallProgram::CallProgram(std::span<const Expr> roots, const AttentionArgs& args)
    : program_(variant::compile(roots)), view_(program_.view()) {
  bind_tensors(args);
  Expr names;  // what bound_params looks up
  names.params = program_.params;
  for (const double value : bound_params(names, args)) {
    params_.push_back(static_cast<float>(value));
  }
}

void CallProgram::bind_tensors(const AttentionArgs& args) {
  aux_.clear();
  for (const variant::AuxSignature& signature : program_.aux) {
    aux_.push_back(variant::strip_aux(aux_tensor(signature.name, args)));
  }
}

BoundProgram CallProgram::bind(const AttentionProblem& problem, const Sequence& sequence,
                               int64_t head, int32_t* error) const {
  BoundProgram bound{};
  bound.program = &view_;
  bound.inputs.batch = sequence.batch_idx;
  bound.inputs.head = head;
  bound.inputs.head_kv = head / problem.group_size();
  bound.inputs.seqlen_q = sequence.seqlen_q;
  bound.inputs.seqlen_k = sequence.seqlen_k;
  bound.inputs.query_offset = sequence.query_offset;
  bound.inputs.leftpad = sequence.leftpad;
  bound.inputs.aux = aux_.data();
  bound.inputs.params = params_.data();
  bound.error = error;
  return bound;
}

std::optional<variant::ScoreLine> line_of(const AttentionProblem& problem) {
  std::optional<variant::ScoreLine> line = variant::score_line(problem.user_score);
  // Slopes act along diagonals, and a tile has one kind of lines.
  if (line && problem.has_alibi && line->shift != 1) return std::nullopt;
  return line;
}

ScorePrograms::ScorePrograms(const AttentionProblem& problem, const AttentionArgs& args,
                             const Expr& rest_of_mask) {
  if (!rest_of_mask.empty()) mask.emplace(std::span(&rest_of_mask, 1), args);
  const Expr& user_score = problem.user_score;
  if (user_score.empty()) return;
  if (problem.is_backward) {
    const std::vector<variant::LoadSite> loads = variant::load_gradients(user_score);
    has_shared_sites = !std::all_of(loads.begin(), loads.end(), [](const variant::LoadSite& site) {
      return variant::is_own_of_key(site.index);
    });
  }
  if (const std::optional<variant::ScoreLine> term = line_of(problem)) {
    line_shift = term->shift;
    if (problem.is_backward) {
      line.emplace(gradient_roots(term->term, args, &sites), args);
    } else {
      line.emplace(std::span(&term->term, 1), args);
    }
    return;
  }
  const Expr violation = index_violation(user_score, bound_aux(user_score, args), {});
  has_indices_by_score =
      std::any_of(violation.aux.begin(), violation.aux.end(),
                  [](const auto& aux) { return aux.name == variant::kAnyScore; });
  const std::optional<Expr> guard = guard_mask(problem, args);
  const Expr guarded_expr = guard ? guarded(user_score, *guard) : user_score;
  if (!problem.is_backward) {
    score.emplace(std::span(&user_score, 1), args);
    guarded_score.emplace(std::span(&guarded_expr, 1), args);
    return;
  }
  gradient.emplace(gradient_roots(user_score, args, &sites), args);
  guarded_gradient.emplace(gradient_roots(guarded_expr, args, &guarded_sites), args);
}

void ScorePrograms::bind_tensors(const AttentionArgs& args) {
  for (auto* program : {&mask, &score, &guarded_score, &gradient, &guarded_gradient, &line}) {
    if (*program) (*program)->bind_tensors(args);
  }
}

}  // namespace flashtile::cpu
