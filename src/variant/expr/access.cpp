// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/access.hpp"

#include <algorithm>

#include "variant/expr/linear.hpp"
#include "variant/expr/scalar_ops.hpp"

namespace flashtile::variant {
namespace {

bool is_diagonal(const Expr& expr, std::span<const VariableSet> uses, int32_t idx);

bool is_diagonal_form(const Expr& expr, std::span<const VariableSet> uses, const LinearForm& form) {
  int64_t sum = 0;
  if (__builtin_add_overflow(form.q, form.k, &sum) || sum != 0) return false;
  return std::ranges::all_of(
      form.terms, [&](const LinearForm::Term& term) { return is_diagonal(expr, uses, term.node); });
}

// Whether a node changes only with q_idx - k_idx: in every sum that it is made of, the two have
// opposite factors.
bool is_diagonal(const Expr& expr, std::span<const VariableSet> uses, int32_t idx) {
  if ((uses[static_cast<size_t>(idx)] & (kQueryBit | kKeyBit)) == 0) return true;
  const Node& node = expr.node(idx);
  const auto args = expr.args(idx);
  if (node.op == Op::kVariable) return false;
  if (node.type == Type::kInt) {
    const LinearForm form = linear_form(expr, idx);
    const bool is_own_term = form.terms.size() == 1 && form.terms[0].node == idx;
    if (!is_own_term) return is_diagonal_form(expr, uses, form);
  } else if (is_comparison(node.op) && expr.node(args[0]).type == Type::kInt) {
    LinearForm difference;
    if (subtract(linear_form(expr, args[0]), linear_form(expr, args[1]), &difference)) {
      return is_diagonal_form(expr, uses, difference);
    }
  }
  return std::ranges::all_of(args, [&](int32_t arg) { return is_diagonal(expr, uses, arg); });
}

struct Use {
  VariableSet variables = 0;
  bool diagonal = true;
};

void add_index(const Expr& expr, std::span<const VariableSet> uses, int32_t node, Use* use) {
  use->variables = static_cast<VariableSet>(use->variables | uses[static_cast<size_t>(node)]);
  use->diagonal = use->diagonal && is_diagonal(expr, uses, node);
}

AccessClass class_of(const Use& use) {
  const bool by_query = (use.variables & kQueryBit) != 0;
  const bool by_key = (use.variables & kKeyBit) != 0;
  if (by_query && by_key) return use.diagonal ? AccessClass::kDiagonal : AccessClass::kGeneral;
  if (by_query) return AccessClass::kRow;
  return by_key ? AccessClass::kColumn : AccessClass::kScalar;
}

}  // namespace

std::vector<VariableSet> variables_of_nodes(const Expr& expr) {
  std::vector<VariableSet> uses(expr.nodes.size(), 0);
  for (int32_t idx = 0; idx <= expr.root(); ++idx) {
    VariableSet set = 0;
    if (expr.node(idx).op == Op::kVariable) set = variable_bit(expr.node(idx).variable);
    for (const int32_t arg : expr.args(idx)) {
      set = static_cast<VariableSet>(set | uses[static_cast<size_t>(arg)]);
    }
    uses[static_cast<size_t>(idx)] = set;
  }
  return uses;
}

bool depends_on(const Expr& expr, int32_t node, Variable variable) {
  return (variables_of_nodes(expr)[static_cast<size_t>(node)] & variable_bit(variable)) != 0;
}

bool reads_score(const Expr& expr) {
  return !expr.empty() && depends_on(expr, expr.root(), Variable::kScore);
}

AccessClass access_class(std::span<const Expr> index) {
  Use use;
  for (const Expr& expr : index) add_index(expr, variables_of_nodes(expr), expr.root(), &use);
  return class_of(use);
}

AccessClass access_class(const Expr& expr, int32_t load) {
  const std::vector<VariableSet> uses = variables_of_nodes(expr);
  Use use;
  for (const int32_t arg : expr.args(load)) add_index(expr, uses, arg, &use);
  return class_of(use);
}

bool is_own_of_key(std::span<const Expr> index) {
  constexpr VariableSet kByKey = kKeyBit | variable_bit(Variable::kScore);
  return std::any_of(index.begin(), index.end(), [](const Expr& expr) {
    const LinearForm form = linear_form(expr, expr.root());
    const std::vector<VariableSet> uses = variables_of_nodes(expr);
    return form.k != 0 &&
           std::none_of(form.terms.begin(), form.terms.end(), [&](const LinearForm::Term& term) {
             return (uses[static_cast<size_t>(term.node)] & kByKey) != 0;
           });
  });
}

}  // namespace flashtile::variant
