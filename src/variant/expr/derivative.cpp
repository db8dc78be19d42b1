// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/derivative.hpp"

#include <numbers>
#include <unordered_map>
#include <utility>

#include "variant/expr/builder.hpp"
#include "variant/expr/paths.hpp"

namespace flashtile::variant {
namespace {

using Id = ExprBuilder::Id;

/// Forward differentiation by one node (a seed) at a time. Ids of `expr` and of the builder differ;
/// `ids_` maps the one to the other.
class Differentiator {
 public:
  explicit Differentiator(const Expr& expr)
      : expr_(expr), ids_(builder_.import_nodes(expr)), zero_(builder_.float_const(0)) {}

  ExprBuilder& builder() { return builder_; }
  Id id(int32_t node) const { return ids_[static_cast<size_t>(node)]; }

  /// d root / d seed, where the seed is a node of the builder.
  Id run(Id seed) {
    std::vector<Id> slopes;
    for (int32_t idx = 0; idx <= expr_.root(); ++idx) {
      const bool is_seed = id(idx) == seed;
      slopes.push_back(is_seed ? builder_.float_const(1) : slope(idx, slopes));
    }
    return slopes.back();
  }

  std::vector<Id> path_conditions() { return variant::path_conditions(builder_, expr_, ids_); }

 private:
  bool is_zero(Id id) const { return id == zero_; }

  Id sum(Id a, Id b) {
    if (is_zero(a)) return b;
    return is_zero(b) ? a : builder_.add(a, b);
  }

  // factor * slope, where an exact 0 stays one: it may be a branch that is not taken, whose factor
  // is infinite or NaN.
  Id scaled(Id factor, Id slope) {
    std::unordered_map<Id, Id> done;
    return scaled(factor, slope, done);
  }

  Id scaled(Id factor, Id slope, std::unordered_map<Id, Id>& done) {
    if (is_zero(slope)) return slope;
    if (builder_.is_float_const(slope, 1)) return factor;
    if (builder_.is_float_const(slope, -1)) return builder_.neg(factor);
    if (!has_branches(slope)) return builder_.mul(factor, slope);
    if (const auto found = done.find(slope); found != done.end()) return found->second;
    const Op op = builder_.node(slope).op;
    const std::vector<Id> args(builder_.args(slope).begin(), builder_.args(slope).end());
    Id out = zero_;
    if (op == Op::kSelect) {
      const Id yes = scaled(factor, args[1], done);
      out = builder_.select(args[0], yes, scaled(factor, args[2], done));
    } else if (op == Op::kNeg) {
      const Id inner = scaled(factor, args[0], done);
      out = is_zero(inner) ? inner : builder_.neg(inner);
    } else {
      const Id left = scaled(factor, args[0], done);
      const Id right = scaled(factor, args[1], done);
      out = op == Op::kAdd ? sum(left, right) : difference(left, right);
    }
    done.emplace(slope, out);
    return out;
  }

  Id difference(Id a, Id b) {
    if (is_zero(b)) return a;
    return is_zero(a) ? builder_.neg(b) : builder_.sub(a, b);
  }

  // Whether there is a select among the terms of a sum.
  bool has_branches(Id id) {
    if (const auto found = branches_.find(id); found != branches_.end()) return found->second;
    const Op op = builder_.node(id).op;
    bool has = op == Op::kSelect;
    if (op == Op::kNeg || op == Op::kAdd || op == Op::kSub) {
      for (const Id arg : builder_.args(id)) has = has || has_branches(arg);
    }
    branches_.emplace(id, has);
    return has;
  }

  Id slope(int32_t idx, const std::vector<Id>& slopes) {
    const Node& node = expr_.node(idx);
    if (node.type != Type::kFloat || node.num_arguments == 0 || node.op == Op::kLoad ||
        node.op == Op::kToFloat || node.op == Op::kFloor) {
      return zero_;
    }
    const auto args = expr_.args(idx);
    const auto slope_of = [&](size_t n) { return slopes[static_cast<size_t>(args[n])]; };
    if (node.op == Op::kSelect) {
      if (is_zero(slope_of(1)) && is_zero(slope_of(2))) return zero_;
      return builder_.select(id(args[0]), slope_of(1), slope_of(2));
    }
    if (args.size() == 1) {
      return is_zero(slope_of(0)) ? zero_ : slope1(node.op, id(idx), id(args[0]), slope_of(0));
    }
    if (is_zero(slope_of(0)) && is_zero(slope_of(1))) return zero_;
    return slope2(node.op, id(idx), {id(args[0]), id(args[1])}, {slope_of(0), slope_of(1)});
  }

  // y = op(x), dx: the slope of x.
  Id slope1(Op op, Id y, Id x, Id dx) {
    ExprBuilder& b = builder_;
    const Id one = b.float_const(1);
    switch (op) {
      case Op::kNeg:
        return b.neg(dx);
      case Op::kAbs: {
        const Id below = b.select(b.binary(Op::kLt, x, zero_), b.neg(dx), zero_);
        return b.select(b.binary(Op::kGt, x, zero_), dx, below);
      }
      case Op::kExp:
        return scaled(y, dx);
      case Op::kLog:
        return scaled(b.div(one, x), dx);
      case Op::kLog2:
        return scaled(b.div(b.float_const(std::numbers::log2e), x), dx);
      case Op::kTanh:
        return scaled(b.sub(one, b.mul(y, y)), dx);
      case Op::kSigmoid:
        return scaled(b.mul(y, b.sub(one, y)), dx);
      case Op::kSqrt:
        return scaled(b.div(b.float_const(0.5), y), dx);
      case Op::kSin:
        return scaled(b.unary(Op::kCos, x), dx);
      case Op::kCos:
        return scaled(b.neg(b.unary(Op::kSin, x)), dx);
      default:
        return zero_;
    }
  }

  struct Pair {
    Id a;
    Id b;
  };

  // y = op(x.a, x.b), dx: their slopes.
  Id slope2(Op op, Id y, Pair x, Pair dx) {
    ExprBuilder& b = builder_;
    switch (op) {
      case Op::kAdd:
        return sum(dx.a, dx.b);
      case Op::kSub:
        return difference(dx.a, dx.b);
      case Op::kMul:
        return sum(scaled(x.b, dx.a), scaled(x.a, dx.b));
      case Op::kDiv: {
        const Id quotient = is_zero(dx.b) ? zero_ : scaled(b.div(b.neg(y), x.b), dx.b);
        return sum(scaled(b.div(b.float_const(1), x.b), dx.a), quotient);
      }
      case Op::kMin:
      case Op::kMax: {
        const Id shared = scaled(b.float_const(0.5), sum(dx.a, dx.b));
        const Op better = op == Op::kMin ? Op::kLt : Op::kGt;
        const Id rest = b.select(b.binary(better, x.b, x.a), dx.b, shared);
        return b.select(b.binary(better, x.a, x.b), dx.a, rest);
      }
      case Op::kMod:  // -trunc(a / b), from the remainder so that it is right for any size
        return sum(dx.a, scaled(b.div(b.sub(y, x.a), x.b), dx.b));
      case Op::kPow:
        return slope_pow(y, x, dx);
      default:
        return zero_;
    }
  }

  Id slope_pow(Id y, Pair x, Pair dx) {
    ExprBuilder& b = builder_;
    const Id power = b.binary(Op::kPow, x.a, b.sub(x.b, b.float_const(1)));
    const Id from_base = scaled(b.mul(x.b, power), dx.a);
    const Id is_flat = b.binary(Op::kEq, x.b, zero_);  // 0 * 0^-1 would be NaN
    const Id base = is_zero(from_base) ? zero_ : b.select(is_flat, zero_, from_base);
    if (is_zero(dx.b)) return base;
    const Id from_exponent = scaled(b.mul(y, b.unary(Op::kLog, x.a)), dx.b);
    return sum(base, b.select(b.binary(Op::kGt, x.a, zero_), from_exponent, zero_));
  }

  ExprBuilder builder_;
  const Expr& expr_;
  std::vector<Id> ids_;
  Id zero_;
  std::unordered_map<Id, bool> branches_;
};

}  // namespace

Expr derivative_score(const Expr& expr) {
  Differentiator differentiator(expr);
  ExprBuilder& builder = differentiator.builder();
  return builder.build(differentiator.run(builder.variable(Variable::kScore)));
}

std::vector<LoadSite> load_gradients(const Expr& expr) {
  Differentiator differentiator(expr);
  ExprBuilder& builder = differentiator.builder();
  const std::vector<Id> active = differentiator.path_conditions();
  std::vector<LoadSite> sites;
  for (int32_t idx = 0; idx <= expr.root(); ++idx) {
    const Node& node = expr.node(idx);
    if (node.op != Op::kLoad || node.type != Type::kFloat) continue;
    const Id slope = differentiator.run(differentiator.id(idx));
    if (builder.is_float_const(slope, 0)) continue;
    LoadSite site;
    site.aux_idx = node.name_idx;
    for (const int32_t arg : expr.args(idx)) {
      site.index.push_back(builder.build(differentiator.id(arg)));
    }
    site.active = builder.build(active[static_cast<size_t>(idx)]);
    site.derivative = builder.build(slope);
    sites.push_back(std::move(site));
  }
  return sites;
}

}  // namespace flashtile::variant
