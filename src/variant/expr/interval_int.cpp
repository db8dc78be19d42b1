// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "variant/expr/interval.hpp"
#include "variant/expr/scalar_ops.hpp"

namespace flashtile::variant {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

IntRange add(IntRange a, IntRange b) {
  IntRange out;
  if (__builtin_add_overflow(a.lo, b.lo, &out.lo) || __builtin_add_overflow(a.hi, b.hi, &out.hi)) {
    return {};
  }
  return out;
}

IntRange negate(IntRange a) {
  if (a.lo == kMin) return {};
  return {-a.hi, -a.lo};
}

IntRange subtract(IntRange a, IntRange b) {
  IntRange out;
  if (__builtin_sub_overflow(a.lo, b.hi, &out.lo) || __builtin_sub_overflow(a.hi, b.lo, &out.hi)) {
    return {};
  }
  return out;
}

IntRange multiply(IntRange a, IntRange b) {
  IntRange out{kMax, kMin};
  for (const int64_t x : {a.lo, a.hi}) {
    for (const int64_t y : {b.lo, b.hi}) {
      int64_t product = 0;
      if (__builtin_mul_overflow(x, y, &product)) return {};
      out = {std::min(out.lo, product), std::max(out.hi, product)};
    }
  }
  return out;
}

// Both divisions are monotone in each argument as long as the divisor keeps its sign, so the
// extremes over such a part are at its corners.
IntRange divide(Op op, IntRange a, IntRange b) {
  if (a.lo == kMin && b.lo <= -1 && b.hi >= -1) return {};
  IntRange out{kMax, kMin};
  const auto extend = [&](IntRange part) {
    if (part.lo > part.hi) return;
    for (const int64_t x : {a.lo, a.hi}) {
      for (const int64_t y : {part.lo, part.hi}) {
        const int64_t quotient = int_op(op, x, y);
        out = {std::min(out.lo, quotient), std::max(out.hi, quotient)};
      }
    }
  };
  extend({b.lo, std::min<int64_t>(b.hi, -1)});
  extend({std::max<int64_t>(b.lo, 1), b.hi});
  if (b.lo <= 0 && b.hi >= 0) out = hull(out.lo > out.hi ? IntRange{0, 0} : out, {0, 0});
  return out;
}

// The remainder that has the sign of a.
IntRange modulo(IntRange a, IntRange b) {
  if (b.is_point() && b.lo != 0 && b.lo != -1 && a.lo / b.lo == a.hi / b.lo) {
    return {a.lo % b.lo, a.hi % b.lo};
  }
  const int64_t largest = std::max(b.hi, b.lo == kMin ? kMax : -b.lo);  // |divisor| at most
  const int64_t limit = b.lo == kMin ? kMax : std::max<int64_t>(largest - 1, 0);
  return {a.lo >= 0 ? 0 : std::max(a.lo, -limit), a.hi <= 0 ? 0 : std::min(a.hi, limit)};
}

// The remainder that has the sign of b.
IntRange floor_modulo(IntRange a, IntRange b) {
  if (b.is_point() && b.lo != 0 && b.lo != -1 && floor_div(a.lo, b.lo) == floor_div(a.hi, b.lo)) {
    return {floor_mod(a.lo, b.lo), floor_mod(a.hi, b.lo)};
  }
  IntRange out{b.lo < 0 ? b.lo + 1 : 0, b.hi > 0 ? b.hi - 1 : 0};
  if (a.lo >= 0 && b.lo >= 0) out.hi = std::min(out.hi, a.hi);
  return out;
}

IntRange bitwise(Op op, IntRange a, IntRange b) {
  if (op == Op::kBitAnd) {
    if (a.lo >= 0 && b.lo >= 0) return {0, std::min(a.hi, b.hi)};
    if (a.lo >= 0) return {0, a.hi};
    return b.lo >= 0 ? IntRange{0, b.hi} : IntRange{};
  }
  if (a.lo < 0 || b.lo < 0) return {};
  const auto bits = static_cast<uint64_t>(a.hi | b.hi);
  const auto ones = static_cast<int64_t>(std::bit_ceil(bits + 1) - 1);
  return {op == Op::kBitOr ? std::max(a.lo, b.lo) : 0, ones};
}

IntRange shift(Op op, IntRange a, IntRange b) {
  if (b.lo < 0 || b.hi > 63) return {};
  if (op == Op::kShr) {
    return {std::min(a.lo >> b.lo, a.lo >> b.hi), std::max(a.hi >> b.lo, a.hi >> b.hi)};
  }
  if (b.hi > 62) return {};
  return multiply(a, {int64_t{1} << b.lo, int64_t{1} << b.hi});
}

}  // namespace

IntRange hull(IntRange a, IntRange b) { return {std::min(a.lo, b.lo), std::max(a.hi, b.hi)}; }

IntRange bound_int_op(Op op, IntRange a, IntRange b) {
  if (a.is_point() && b.is_point()) {
    const int64_t value = int_op(op, a.lo, b.lo);
    return {value, value};
  }
  switch (op) {
    case Op::kNeg:
      return negate(a);
    case Op::kAbs:
      if (a.lo >= 0) return a;
      if (a.lo == kMin) return {};
      return a.hi <= 0 ? negate(a) : IntRange{0, std::max(-a.lo, a.hi)};
    case Op::kAdd:
      return add(a, b);
    case Op::kSub:
      return subtract(a, b);
    case Op::kMul:
      return multiply(a, b);
    case Op::kMin:
      return {std::min(a.lo, b.lo), std::min(a.hi, b.hi)};
    case Op::kMax:
      return {std::max(a.lo, b.lo), std::max(a.hi, b.hi)};
    case Op::kDiv:
    case Op::kFloorDiv:
      return divide(op, a, b);
    case Op::kMod:
      return modulo(a, b);
    case Op::kFloorMod:
      return floor_modulo(a, b);
    case Op::kBitAnd:
    case Op::kBitOr:
    case Op::kBitXor:
      return bitwise(op, a, b);
    case Op::kShl:
    case Op::kShr:
      return shift(op, a, b);
    default:
      return {};
  }
}

Truth bound_comparison(Op op, IntRange a, IntRange b) {
  switch (op) {
    case Op::kLt:
      return a.hi < b.lo ? Truth::kTrue : a.lo >= b.hi ? Truth::kFalse : Truth::kMaybe;
    case Op::kLe:
      return a.hi <= b.lo ? Truth::kTrue : a.lo > b.hi ? Truth::kFalse : Truth::kMaybe;
    case Op::kGt:
    case Op::kGe:
      return bound_comparison(swapped(op), b, a);
    case Op::kEq:
      if (a.hi < b.lo || b.hi < a.lo) return Truth::kFalse;
      return a.is_point() && b.is_point() ? Truth::kTrue : Truth::kMaybe;
    case Op::kNe:
      return truth_not(bound_comparison(Op::kEq, a, b));
    default:
      return Truth::kMaybe;
  }
}

}  // namespace flashtile::variant
