// SPDX-License-Identifier: Apache-2.0
//
// The rules of ExprBuilder: which node an operation becomes. A rule belongs here only if it gives
// the same value for every argument, NaN and infinities included, and reads no more than before.
#include <array>
#include <utility>

#include "flashtile/error.hpp"
#include "variant/expr/builder.hpp"
#include "variant/expr/scalar_ops.hpp"

namespace flashtile::variant {

bool ExprBuilder::is_const(Id id) const {
  const Op op = node(id).op;
  return op == Op::kBoolConst || op == Op::kIntConst || op == Op::kFloatConst;
}

ExprBuilder::Id ExprBuilder::number(Id a) { return type(a) == Type::kBool ? to_int(a) : a; }

ExprBuilder::Id ExprBuilder::integer(Id a, Op op) {
  if (type(a) == Type::kFloat) {
    throw Error(ErrorCode::kInvalidArgument,
                op == Op::kFloorDiv || op == Op::kFloorMod
                    ? "floordiv and floormod take integers, found a float"
                    : "bit operators and shifts take integers, found a float");
  }
  return to_int(a);
}

ExprBuilder::Id ExprBuilder::to_int(Id a) {
  const Node& from = node(a);
  if (from.type == Type::kInt) return a;
  if (from.op == Op::kBoolConst) return int_const(from.int_value);
  if (from.op == Op::kFloatConst) return int_const(float_to_int(from.float_value));
  if (from.op == Op::kToFloat && type(args(a)[0]) == Type::kBool) return to_int(args(a)[0]);
  return make1(Op::kToInt, Type::kInt, a);
}

ExprBuilder::Id ExprBuilder::to_float(Id a) {
  const Node& from = node(a);
  if (from.type == Type::kFloat) return a;
  if (is_const(a)) return float_const(static_cast<double>(from.int_value));
  if (from.op == Op::kToInt && type(args(a)[0]) == Type::kBool) return to_float(args(a)[0]);
  return make1(Op::kToFloat, Type::kFloat, a);
}

ExprBuilder::Id ExprBuilder::to_bool(Id a) {
  switch (type(a)) {
    case Type::kBool:
      return a;
    case Type::kInt:
      return compare(Op::kNe, a, int_const(0));
    case Type::kFloat:
      // An integer that is not 0 stays so as a float.
      if (node(a).op == Op::kToFloat) return to_bool(args(a)[0]);
      return compare(Op::kNe, a, float_const(0));
  }
  return a;
}

ExprBuilder::Id ExprBuilder::convert(Id a, Type type) {
  switch (type) {
    case Type::kBool:
      return to_bool(a);
    case Type::kInt:
      return to_int(a);
    case Type::kFloat:
      return to_float(a);
  }
  return a;
}

ExprBuilder::Id ExprBuilder::fold1(Op op, Id a) {
  const Node& value = node(a);
  return value.type == Type::kFloat ? float_const(float_op(op, value.float_value))
                                    : int_const(int_op(op, value.int_value));
}

ExprBuilder::Id ExprBuilder::fold2(Op op, Id a, Id b) {
  const Node& x = node(a);
  const Node& y = node(b);
  return x.type == Type::kFloat ? float_const(float_op(op, x.float_value, y.float_value))
                                : int_const(int_op(op, x.int_value, y.int_value));
}

ExprBuilder::Id ExprBuilder::unary(Op op, Id a) {
  switch (op) {
    case Op::kToInt:
      return to_int(a);
    case Op::kToFloat:
      return to_float(a);
    case Op::kToBool:
      return to_bool(a);
    case Op::kNot: {
      a = to_bool(a);
      const Node from = node(a);
      if (from.op == Op::kBoolConst) return bool_const(from.int_value == 0);
      if (from.op == Op::kNot) return args(a)[0];
      // !(a < b) is not a >= b for a NaN; == and != are each other's opposite even then.
      const bool opposite = from.op == Op::kEq || from.op == Op::kNe;
      if (is_comparison(from.op) && (opposite || type(args(a)[0]) == Type::kInt)) {
        return compare(negated(from.op), args(a)[0], args(a)[1]);
      }
      return make1(op, Type::kBool, a);
    }
    case Op::kNeg:
    case Op::kAbs:
      a = number(a);
      if (is_const(a)) return fold1(op, a);
      if (node(a).op == Op::kNeg) return op == Op::kNeg ? args(a)[0] : unary(op, args(a)[0]);
      if (op == Op::kAbs && node(a).op == Op::kAbs) return a;
      if (op == Op::kAbs && node(a).op == Op::kToInt && type(args(a)[0]) == Type::kBool) return a;
      return make1(op, type(a), a);
    default:
      if (op == Op::kFloor && type(a) != Type::kFloat) return to_float(a);
      a = to_float(a);
      if (is_const(a)) return fold1(op, a);
      if (op == Op::kFloor && (node(a).op == Op::kFloor || node(a).op == Op::kToFloat)) return a;
      return make1(op, Type::kFloat, a);
  }
}

ExprBuilder::Id ExprBuilder::binary(Op op, Id a, Id b) {
  if (op == Op::kAnd || op == Op::kOr) return chain(op, to_bool(a), to_bool(b));
  if (is_comparison(op)) return compare(op, a, b);
  if (is_int_function(op)) {
    a = integer(a, op);
    b = integer(b, op);
  } else if (op == Op::kPow || type(a) == Type::kFloat || type(b) == Type::kFloat) {
    a = to_float(a);
    b = to_float(b);
  } else {
    a = number(a);
    b = number(b);
  }
  if (is_const(a) && is_const(b)) return fold2(op, a, b);
  // Constants of + and * on the right, so that equal things are equal nodes.
  if (is_const(a) && (op == Op::kAdd || op == Op::kMul)) std::swap(a, b);
  const Id simple = type(a) == Type::kInt ? simplify_int(op, a, b) : simplify_float(op, a, b);
  return simple >= 0 ? simple : make2(op, type(a), a, b);
}

ExprBuilder::Id ExprBuilder::simplify_int(Op op, Id a, Id b) {
  const bool right_is_const = is_const(b);
  const int64_t right = right_is_const ? node(b).int_value : 0;
  const bool zero = right_is_const && right == 0;
  const bool one = right_is_const && right == 1;
  switch (op) {
    case Op::kAdd:
    case Op::kSub: {
      if (zero) return a;
      if (op == Op::kSub && a == b) return int_const(0);
      if (op == Op::kSub && is_int_const(a, 0)) return neg(b);
      if (node(b).op == Op::kNeg) {
        return binary(op == Op::kAdd ? Op::kSub : Op::kAdd, a, args(b)[0]);
      }
      if (!right_is_const) return -1;
      if (op == Op::kSub) return add(a, int_const(int_op(Op::kNeg, right)));
      const bool is_sum = node(a).op == Op::kAdd && is_const(args(a)[1]);
      return is_sum ? add(args(a)[0], fold2(Op::kAdd, args(a)[1], b)) : -1;
    }
    case Op::kMul:
      if (zero) return b;
      if (one) return a;
      return right_is_const && right == -1 ? neg(a) : -1;
    case Op::kMin:
    case Op::kMax:
    case Op::kBitAnd:
    case Op::kBitOr:
      if (a == b) return a;
      if (zero && op == Op::kBitAnd) return b;
      return zero && op == Op::kBitOr ? a : -1;
    case Op::kBitXor:
      if (a == b) return int_const(0);
      return zero ? a : -1;
    case Op::kDiv:
    case Op::kFloorDiv:
      if (zero) return b;
      return one ? a : -1;
    case Op::kMod:
    case Op::kFloorMod:
      return zero || one ? int_const(0) : -1;
    case Op::kShl:
    case Op::kShr:
      return right_is_const && (right & 63) == 0 ? a : -1;
    default:
      return -1;
  }
}

ExprBuilder::Id ExprBuilder::simplify_float(Op op, Id a, Id b) {
  const bool right_is_const = is_const(b);
  const double right = right_is_const ? node(b).float_value : 0;
  switch (op) {
    case Op::kAdd:
    case Op::kSub:
      // Not x + 0.0: it turns -0.0 into 0.0.
      if (right_is_const && right == 0 && std::signbit(right) == (op == Op::kAdd)) return a;
      if (node(b).op == Op::kNeg) {
        return binary(op == Op::kAdd ? Op::kSub : Op::kAdd, a, args(b)[0]);
      }
      return -1;
    case Op::kMul:
    case Op::kDiv:
      if (right_is_const && right == 1) return a;
      return right_is_const && right == -1 ? neg(a) : -1;
    case Op::kMin:
    case Op::kMax:
      return a == b ? a : -1;
    case Op::kPow:
      if (right_is_const && right == 0) return float_const(1);
      if (right_is_const && right == 1) return a;
      return right_is_const && right == 2 ? mul(a, a) : -1;
    default:
      return -1;
  }
}

ExprBuilder::Id ExprBuilder::compare(Op op, Id a, Id b) {
  const bool is_float = type(a) == Type::kFloat || type(b) == Type::kFloat;
  a = is_float ? to_float(a) : number(a);
  b = is_float ? to_float(b) : number(b);
  const Node x = node(a);
  const Node y = node(b);
  if (is_const(a) && is_const(b)) {
    return bool_const(is_float ? variant::compare(op, x.float_value, y.float_value)
                               : variant::compare(op, x.int_value, y.int_value));
  }
  if (is_const(a)) return compare(swapped(op), b, a);
  if (a == b) {
    const bool strict = op == Op::kNe || op == Op::kLt || op == Op::kGt;
    if (!is_float) return bool_const(!strict);
    if (op == Op::kLt || op == Op::kGt) return bool_const(false);
  }
  if (x.op == Op::kToInt && type(args(a)[0]) == Type::kBool && is_const(b)) {
    return compare_bool_as_int(op, a, b);
  }
  // (c ? x : y) != 0 where a branch is a truth value: let the branches be truth values.
  if (x.op == Op::kSelect && op == Op::kNe && is_const(b) && !is_float && y.int_value == 0) {
    const Id yes = args(a)[1];
    const Id no = args(a)[2];
    const auto is_truth = [this](Id id) {
      return is_const(id) || (node(id).op == Op::kToInt && type(args(id)[0]) == Type::kBool);
    };
    if (is_truth(yes) || is_truth(no)) {
      const Id condition = args(a)[0];
      const Id yes_bool = to_bool(yes);
      return select(condition, yes_bool, to_bool(no));
    }
  }
  return make2(op, Type::kBool, a, b);
}

ExprBuilder::Id ExprBuilder::compare_bool_as_int(Op op, Id a, Id b) {
  const Id truth = args(a)[0];
  const int64_t right = node(b).int_value;
  const bool if_true = variant::compare(op, int64_t{1}, right);
  const bool if_false = variant::compare(op, int64_t{0}, right);
  if (if_true == if_false) return bool_const(if_true);
  return if_true ? truth : logical_not(truth);
}

bool ExprBuilder::chain_contains(Op op, Id chain, Id part) const {
  for (;;) {
    if (chain == part) return true;
    if (node(chain).op != op) return false;
    if (args(chain)[1] == part) return true;
    chain = args(chain)[0];
  }
}

ExprBuilder::Id ExprBuilder::chain(Op op, Id a, Id b) {
  const bool is_and = op == Op::kAnd;
  if (node(a).op == Op::kBoolConst) return bool_value(a) == is_and ? b : a;
  if (node(b).op == Op::kBoolConst) return bool_value(b) == is_and ? a : b;
  if (logical_not(a) == b) return bool_const(!is_and);
  if (chain_contains(op, a, b)) return a;  // (x && b) && b
  if (chain_contains(op, b, a)) return b;  // a && (a && x)
  const Op dual = is_and ? Op::kOr : Op::kAnd;
  if (node(b).op == dual && chain_contains(dual, b, a)) return a;  // a || (a && x)
  if (node(a).op == dual && chain_contains(dual, a, b)) return b;
  return make2(op, Type::kBool, a, b);
}

ExprBuilder::Id ExprBuilder::select(Id condition, Id yes, Id no) {
  condition = to_bool(condition);
  if (type(yes) == Type::kFloat || type(no) == Type::kFloat) {
    yes = to_float(yes);
    no = to_float(no);
  } else if (type(yes) == Type::kInt || type(no) == Type::kInt) {
    yes = to_int(yes);
    no = to_int(no);
  }
  if (node(condition).op == Op::kBoolConst) return bool_value(condition) ? yes : no;
  if (node(condition).op == Op::kNot) {
    condition = args(condition)[0];
    std::swap(yes, no);
  }
  // A branch that asks the same again.
  if (node(yes).op == Op::kSelect && args(yes)[0] == condition) yes = args(yes)[1];
  if (node(no).op == Op::kSelect && args(no)[0] == condition) no = args(no)[2];
  if (yes == no) return yes;
  if (type(yes) == Type::kBool) return select_bool(condition, yes, no);
  Node out;
  out.op = Op::kSelect;
  out.type = type(yes);
  return make(out, std::array{condition, yes, no});
}

ExprBuilder::Id ExprBuilder::select_bool(Id condition, Id yes, Id no) {
  if (node(yes).op == Op::kBoolConst) {
    return bool_value(yes) ? logical_or(condition, no) : logical_and(logical_not(condition), no);
  }
  if (node(no).op == Op::kBoolConst) {
    return bool_value(no) ? logical_or(logical_not(condition), yes) : logical_and(condition, yes);
  }
  Node out;
  out.op = Op::kSelect;
  out.type = Type::kBool;
  return make(out, std::array{condition, yes, no});
}

}  // namespace flashtile::variant
