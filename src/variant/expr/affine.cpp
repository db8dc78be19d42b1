// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/affine.hpp"

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "variant/expr/access.hpp"
#include "variant/expr/builder.hpp"
#include "variant/expr/linear.hpp"
#include "variant/expr/scalar_ops.hpp"

namespace flashtile::variant {
namespace {

using Id = ExprBuilder::Id;

class BandMatcher {
 public:
  explicit BandMatcher(const Expr& expr)
      : expr_(expr), uses_(variables_of_nodes(expr)), ids_(builder_.import_nodes(expr)) {}

  std::optional<Band> run() {
    const Node& root = expr_.nodes.back();
    if (!is_comparison(root.op) || root.op == Op::kNe) return std::nullopt;
    int32_t left = expr_.args(expr_.root())[0];
    int32_t right = expr_.args(expr_.root())[1];
    Op op = root.op;
    if (expr_.node(left).type != Type::kInt) return std::nullopt;
    if (expr_.node(right).op == Op::kAbs) {
      std::swap(left, right);
      op = swapped(op);
    }
    const LinearForm bound = linear_form(expr_, right);
    LinearForm difference;
    if (expr_.node(left).op == Op::kAbs && (op == Op::kLt || op == Op::kLe)) {
      // abs(x) < c is x - c < 0 and -x - c < 0.
      const LinearForm inside = linear_form(expr_, expr_.args(left)[0]);
      LinearForm minus;
      if (!subtract(LinearForm{}, inside, &minus)) return std::nullopt;
      if (!subtract(inside, bound, &difference) || !restrict(op, difference)) return std::nullopt;
      if (!subtract(minus, bound, &difference) || !restrict(op, difference)) return std::nullopt;
    } else if (!subtract(linear_form(expr_, left), bound, &difference) ||
               !restrict(op, difference)) {
      return std::nullopt;
    }
    Band band;
    if (lo_ >= 0) band.lo = builder_.build(lo_);
    if (hi_ >= 0) band.hi = builder_.build(hi_);
    return band;
  }

 private:
  // Adds what `form op 0` says of k_idx - q_idx; false if it is no statement about that.
  bool restrict(Op op, LinearForm form) {
    if (form.k == 0 || form.k == std::numeric_limits<int64_t>::min() || form.q != -form.k) {
      return false;
    }
    constexpr VariableSet kMoving = kQueryBit | kKeyBit;
    for (const LinearForm::Term& term : form.terms) {
      if ((uses_[static_cast<size_t>(term.node)] & kMoving) != 0) return false;
    }
    if (form.k < 0) {  // towards a positive factor of k_idx
      const LinearForm before = form;
      if (!subtract(LinearForm{}, before, &form)) return false;
      op = swapped(op);
    }
    if (op == Op::kEq && form.k != 1) return false;
    // factor * (k_idx - q_idx) + rest op 0
    const Id factor = builder_.int_const(form.k);
    const Id one = builder_.int_const(1);
    const Id rest = value_of_rest(form);
    if (op == Op::kLe || op == Op::kLt || op == Op::kEq) {
      const Id limit = op == Op::kLt ? builder_.add(rest, one) : rest;
      set_hi(builder_.binary(Op::kFloorDiv, builder_.neg(limit), factor));
    }
    if (op == Op::kGe || op == Op::kGt || op == Op::kEq) {
      const Id limit = op == Op::kGt ? builder_.sub(rest, one) : rest;
      set_lo(builder_.neg(builder_.binary(Op::kFloorDiv, limit, factor)));
    }
    return true;
  }

  Id value_of_rest(const LinearForm& form) {
    Id sum = builder_.int_const(0);
    for (const LinearForm::Term& term : form.terms) {
      const Id value = ids_[static_cast<size_t>(term.node)];
      // Factors last, and subtracted where negative, so that the bound reads well.
      sum = term.factor == -1
                ? builder_.sub(sum, value)
                : builder_.add(sum, builder_.mul(value, builder_.int_const(term.factor)));
    }
    return builder_.add(sum, builder_.int_const(form.constant));
  }

  void set_lo(Id bound) { lo_ = lo_ < 0 ? bound : builder_.binary(Op::kMax, lo_, bound); }
  void set_hi(Id bound) { hi_ = hi_ < 0 ? bound : builder_.binary(Op::kMin, hi_, bound); }

  const Expr& expr_;
  ExprBuilder builder_;
  std::vector<VariableSet> uses_;
  std::vector<Id> ids_;
  Id lo_ = -1;
  Id hi_ = -1;
};

}  // namespace

std::optional<Band> match_band(const Expr& conjunct) {
  if (conjunct.empty()) return std::nullopt;
  return BandMatcher(conjunct).run();
}

}  // namespace flashtile::variant
