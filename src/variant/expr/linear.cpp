// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/linear.hpp"

#include <algorithm>

namespace flashtile::variant {
namespace {

// to += from * factor; false on overflow.
bool accumulate(int64_t* to, int64_t from, int64_t factor) {
  int64_t product = 0;
  return !__builtin_mul_overflow(from, factor, &product) &&
         !__builtin_add_overflow(*to, product, to);
}

bool accumulate_term(LinearForm* form, int32_t node, int64_t factor) {
  const auto place =
      std::ranges::lower_bound(form->terms, node, {}, [](const auto& term) { return term.node; });
  if (place == form->terms.end() || place->node != node) {
    if (factor != 0) form->terms.insert(place, {node, factor});
    return true;
  }
  if (!accumulate(&place->factor, factor, 1)) return false;
  if (place->factor == 0) form->terms.erase(place);
  return true;
}

// to += from * factor
bool accumulate_form(LinearForm* to, const LinearForm& from, int64_t factor) {
  if (!accumulate(&to->q, from.q, factor) || !accumulate(&to->k, from.k, factor) ||
      !accumulate(&to->constant, from.constant, factor)) {
    return false;
  }
  for (const LinearForm::Term& term : from.terms) {
    int64_t product = 0;
    if (!accumulate(&product, term.factor, factor)) return false;
    if (!accumulate_term(to, term.node, product)) return false;
  }
  return true;
}

bool collect(const Expr& expr, int32_t idx, int64_t factor, LinearForm* form);

// The parts of one node; false where it has none or they do not fit.
bool collect_parts(const Expr& expr, int32_t idx, int64_t factor, LinearForm* form) {
  const Node& node = expr.node(idx);
  const auto args = expr.args(idx);
  int64_t changed = 0;
  switch (node.op) {
    case Op::kIntConst:
      return accumulate(&form->constant, node.int_value, factor);
    case Op::kVariable:
      if (node.variable == Variable::kQIdx) return accumulate(&form->q, factor, 1);
      if (node.variable == Variable::kKIdx) return accumulate(&form->k, factor, 1);
      return false;
    case Op::kAdd:
      return collect(expr, args[0], factor, form) && collect(expr, args[1], factor, form);
    case Op::kSub:
      return accumulate(&changed, factor, -1) && collect(expr, args[0], factor, form) &&
             collect(expr, args[1], changed, form);
    case Op::kNeg:
      return accumulate(&changed, factor, -1) && collect(expr, args[0], changed, form);
    case Op::kMul: {
      const Node& right = expr.node(args[1]);
      return right.op == Op::kIntConst && accumulate(&changed, factor, right.int_value) &&
             collect(expr, args[0], changed, form);
    }
    default:
      return false;
  }
}

bool collect(const Expr& expr, int32_t idx, int64_t factor, LinearForm* form) {
  LinearForm with_parts = *form;
  if (collect_parts(expr, idx, factor, &with_parts)) {
    *form = with_parts;
    return true;
  }
  return accumulate_term(form, idx, factor);
}

}  // namespace

LinearForm linear_form(const Expr& expr, int32_t node) {
  LinearForm form;
  collect(expr, node, 1, &form);
  return form;
}

bool subtract(const LinearForm& a, const LinearForm& b, LinearForm* difference) {
  *difference = a;
  return accumulate_form(difference, b, -1);
}

}  // namespace flashtile::variant
