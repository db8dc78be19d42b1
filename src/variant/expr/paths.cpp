// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/paths.hpp"

namespace flashtile::variant {

namespace {

using Id = ExprBuilder::Id;

}  // namespace

std::vector<Id> path_conditions(ExprBuilder& builder, const Expr& expr, std::span<const Id> ids) {
  std::vector<Id> active(expr.nodes.size(), builder.bool_const(false));
  active.back() = builder.bool_const(true);
  const auto reach = [&](int32_t node, Id condition) {
    Id& current = active[static_cast<size_t>(node)];
    current = builder.logical_or(current, condition);
  };
  for (int32_t idx = expr.root(); idx >= 0; --idx) {
    const Id here = active[static_cast<size_t>(idx)];
    const auto args = expr.args(idx);
    const Op op = expr.node(idx).op;
    const bool is_lazy = op == Op::kSelect || op == Op::kAnd || op == Op::kOr;
    if (!is_lazy) {
      for (const int32_t arg : args) reach(arg, here);
      continue;
    }
    const Id condition = ids[static_cast<size_t>(args[0])];
    const Id otherwise = builder.logical_not(condition);
    reach(args[0], here);
    reach(args[1], builder.logical_and(here, op == Op::kOr ? otherwise : condition));
    if (op == Op::kSelect) reach(args[2], builder.logical_and(here, otherwise));
  }
  return active;
}

Expr index_violation(const Expr& expr, std::span<const TensorView> aux, const Expr& guard) {
  ExprBuilder builder;
  const Id first = builder.int_const(0);
  const Id any_score = builder.load({std::string(kAnyScore), 1, true}, std::span(&first, 1));
  const std::vector<Id> ids = builder.import_nodes(expr, any_score);
  const std::vector<Id> active = path_conditions(builder, expr, ids);
  Id violation = builder.bool_const(false);
  for (int32_t idx = 0; idx <= expr.root(); ++idx) {
    const Node& node = expr.node(idx);
    if (node.op != Op::kLoad) continue;
    const TensorView& tensor = aux[static_cast<size_t>(node.name_idx)];
    Id outside = builder.bool_const(false);
    size_t dim = 0;
    for (const int32_t arg : expr.args(idx)) {
      const Id index = ids[static_cast<size_t>(arg)];
      const Id size = builder.int_const(tensor.shape[dim++]);
      outside = builder.logical_or(outside, builder.binary(Op::kLt, index, first));
      outside = builder.logical_or(outside, builder.binary(Op::kGe, index, size));
    }
    violation = builder.logical_or(violation,
                                   builder.logical_and(active[static_cast<size_t>(idx)], outside));
  }
  if (!guard.empty()) violation = builder.logical_and(builder.import(guard), violation);
  return builder.build(violation);
}

}  // namespace flashtile::variant
