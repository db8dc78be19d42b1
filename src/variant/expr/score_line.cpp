// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/score_line.hpp"

#include <span>
#include <vector>

#include "variant/expr/access.hpp"
#include "variant/expr/builder.hpp"

namespace flashtile::variant {
namespace {

struct Summand {
  int32_t node = 0;
  bool is_negative = false;
};

/// The summands of a float node: what is left of + and - around the score.
void add_summands(const Expr& expr, std::span<const VariableSet> uses, Summand summand,
                  std::vector<Summand>* out) {
  const Op op = expr.node(summand.node).op;
  const bool reads =
      (uses[static_cast<size_t>(summand.node)] & variable_bit(Variable::kScore)) != 0;
  if (!reads || (op != Op::kAdd && op != Op::kSub)) {
    out->push_back(summand);
    return;
  }
  const auto args = expr.args(summand.node);
  add_summands(expr, uses, {args[0], summand.is_negative}, out);
  add_summands(expr, uses, {args[1], summand.is_negative != (op == Op::kSub)}, out);
}

}  // namespace

std::optional<ScoreLine> score_line(const Expr& score) {
  if (score.empty()) return std::nullopt;
  const std::vector<VariableSet> uses = variables_of_nodes(score);
  std::vector<Summand> summands;
  add_summands(score, uses, {score.root(), false}, &summands);
  ExprBuilder builder;
  const std::vector<ExprBuilder::Id> ids = builder.import_nodes(score);
  ExprBuilder::Id sum = -1;
  int num_scores = 0;
  for (const Summand& summand : summands) {
    const Node& node = score.node(summand.node);
    if (node.op == Op::kVariable && node.variable == Variable::kScore && !summand.is_negative) {
      ++num_scores;
      continue;
    }
    if ((uses[static_cast<size_t>(summand.node)] & variable_bit(Variable::kScore)) != 0) {
      return std::nullopt;
    }
    ExprBuilder::Id id = ids[static_cast<size_t>(summand.node)];
    if (summand.is_negative) id = builder.neg(id);
    sum = sum < 0 ? id : builder.add(sum, id);
  }
  if (num_scores != 1 || sum < 0) return std::nullopt;
  ScoreLine line{builder.build(sum), 0};
  switch (access_class({&line.term, 1})) {
    case AccessClass::kDiagonal:
      line.shift = 1;
      return line;
    case AccessClass::kScalar:
    case AccessClass::kColumn:
      return line;
    default:
      return std::nullopt;
  }
}

}  // namespace flashtile::variant
