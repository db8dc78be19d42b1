// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/substitute.hpp"

#include "variant/expr/builder.hpp"

namespace flashtile::variant {
namespace {

void split(ExprBuilder& builder, ExprBuilder::Id id, std::vector<Expr>& parts) {
  const Node node = builder.node(id);
  if (node.op == Op::kAnd) {
    const ExprBuilder::Id left = builder.args(id)[0];
    const ExprBuilder::Id right = builder.args(id)[1];
    split(builder, left, parts);
    split(builder, right, parts);
    return;
  }
  if (node.op == Op::kNot && builder.node(builder.args(id)[0]).op == Op::kOr) {
    const ExprBuilder::Id either = builder.args(id)[0];
    const ExprBuilder::Id left = builder.args(either)[0];
    const ExprBuilder::Id right = builder.args(either)[1];
    split(builder, builder.logical_not(left), parts);
    split(builder, builder.logical_not(right), parts);
    return;
  }
  parts.push_back(builder.build(id));
}

}  // namespace

Expr compose(const Expr& outer, const Expr& inner) {
  ExprBuilder builder;
  const ExprBuilder::Id score = builder.import(inner);
  return builder.build(builder.import(outer, score));
}

Expr conjunction(std::span<const Expr> masks) {
  ExprBuilder builder;
  ExprBuilder::Id all = builder.bool_const(true);
  for (const Expr& mask : masks) all = builder.logical_and(all, builder.import(mask));
  return builder.build(all);
}

std::vector<Expr> conjuncts(const Expr& mask) {
  ExprBuilder builder;
  std::vector<Expr> parts;
  split(builder, builder.to_bool(builder.import(mask)), parts);
  return parts;
}

Expr with_whole_params(Expr expr, std::span<const double> values) {
  for (size_t n = 0; n < expr.nodes.size(); ++n) {
    if (expr.nodes[n].op != Op::kToInt) continue;
    const Node& argument = expr.node(expr.args(static_cast<int32_t>(n))[0]);
    if (argument.op != Op::kParam) continue;
    Node whole;
    whole.op = Op::kIntConst;
    whole.type = Type::kInt;
    whole.int_value = static_cast<int64_t>(values[static_cast<size_t>(argument.name_idx)]);
    expr.nodes[n] = whole;
  }
  return simplify(expr);
}

Expr simplify(const Expr& expr) {
  ExprBuilder builder;
  return builder.build(builder.import(expr));
}

Expr subexpression(const Expr& expr, int32_t node) {
  ExprBuilder builder;
  return builder.build(builder.import_nodes(expr)[static_cast<size_t>(node)]);
}

}  // namespace flashtile::variant
