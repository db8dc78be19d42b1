// SPDX-License-Identifier: Apache-2.0
#include <unordered_map>

#include "variant/expr/bounds_plan.hpp"
#include "variant/expr/builder.hpp"
#include "variant/expr/scalar_ops.hpp"

namespace flashtile::variant {
namespace {

using Id = ExprBuilder::Id;

constexpr int kMaxSplits = 64;  // each may double the size of a comparison

class Rewriter {
 public:
  Expr run(const Expr& mask) {
    const Id root = builder_.to_bool(builder_.import(mask));
    return builder_.build(rewrite(root, /*positive=*/true));
  }

 private:
  Id arg(Id id, size_t n) const { return builder_.args(id)[n]; }

  // `id`, or its opposite.
  Id rewrite(Id id, bool positive) {
    const auto key = (static_cast<int64_t>(id) << 1) | (positive ? 1 : 0);
    if (const auto found = done_.find(key); found != done_.end()) return found->second;
    const Id out = rewrite_new(id, positive);
    done_.emplace(key, out);
    return out;
  }

  Id rewrite_new(Id id, bool positive) {
    const Op op = builder_.node(id).op;
    switch (op) {
      case Op::kNot:
        return rewrite(arg(id, 0), !positive);
      case Op::kAnd:
      case Op::kOr: {
        const Id left = rewrite(arg(id, 0), positive);
        const Id right = rewrite(arg(id, 1), positive);
        return (op == Op::kAnd) == positive ? builder_.logical_and(left, right)
                                            : builder_.logical_or(left, right);
      }
      case Op::kSelect: {
        const Id yes = both(rewrite(arg(id, 0), true), rewrite(arg(id, 1), positive));
        return builder_.logical_or(yes,
                                   both(rewrite(arg(id, 0), false), rewrite(arg(id, 2), positive)));
      }
      default:
        break;
    }
    const Id same = positive ? id : builder_.logical_not(id);
    const Op final_op = builder_.node(same).op;
    const bool splits = is_comparison(final_op) && final_op != Op::kEq && final_op != Op::kNe &&
                        builder_.type(arg(same, 0)) == Type::kInt;
    return splits ? split(final_op, arg(same, 0), arg(same, 1)) : same;
  }

  Id both(Id a, Id b) { return builder_.logical_and(a, b); }

  // An ordering of integers with min, max or abs on one side.
  Id split(Op op, Id a, Id b) {
    for (const bool exchange : {false, true}) {
      const Id side = exchange ? b : a;
      const Id other = exchange ? a : b;
      const Op from_side = exchange ? swapped(op) : op;  // side from_side other
      const bool below = from_side == Op::kLt || from_side == Op::kLe;
      const Op side_op = builder_.node(side).op;
      const bool can_split = side_op == Op::kMin || side_op == Op::kMax || side_op == Op::kAbs;
      if (can_split && num_splits_ < kMaxSplits) {
        ++num_splits_;
        // max(x, y) < c asks for both, min(x, y) < c for one; abs(x) is max(x, -x).
        const Id x = arg(side, 0);
        const Id y = side_op == Op::kAbs ? builder_.neg(x) : arg(side, 1);
        const Id left = ordering(from_side, x, other);
        const Id right = ordering(from_side, y, other);
        return below == (side_op != Op::kMin) ? builder_.logical_and(left, right)
                                              : builder_.logical_or(left, right);
      }
    }
    return builder_.binary(op, a, b);
  }

  Id ordering(Op op, Id a, Id b) {
    const Id plain = builder_.binary(op, a, b);
    const Op found = builder_.node(plain).op;
    return is_comparison(found) && found != Op::kEq && found != Op::kNe &&
                   builder_.type(arg(plain, 0)) == Type::kInt
               ? split(found, arg(plain, 0), arg(plain, 1))
               : plain;
  }

  ExprBuilder builder_;
  std::unordered_map<int64_t, Id> done_;
  int num_splits_ = 0;
};

}  // namespace

Expr rewrite_for_bounds(const Expr& mask) { return Rewriter().run(mask); }

}  // namespace flashtile::variant
