// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "variant/expr/interval.hpp"
#include "variant/expr/scalar_ops.hpp"

namespace flashtile::variant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargestFloat = 0x1.fffffep127;
constexpr double kSmallestNormalFloat = 0x1p-126;

// Whether float32 holds x for certain; its subnormal numbers may be flushed.
bool is_float32(double x) {
  if (x == 0 || std::isinf(x)) return true;
  const double size = std::fabs(x);
  return size <= kLargestFloat && size >= kSmallestNormalFloat &&
         x == static_cast<double>(static_cast<float>(x));
}

// A bound moved outwards by `relative` of its size, so that it holds for float32 as well: there a
// small number may be flushed to 0 and a large one may overflow.
double moved_down(double x, double relative) {
  if (x > kLargestFloat) return kLargestFloat;
  if (x > 0) return x < 2 * kSmallestNormalFloat ? 0 : x * (1 - relative);
  if (x > -2 * kSmallestNormalFloat) return x == 0 ? 0 : -2 * kSmallestNormalFloat;
  const double moved = x * (1 + relative);
  return moved < -kLargestFloat ? -kInfinity : moved;
}

double moved_up(double x, double relative) { return -moved_down(-x, relative); }

constexpr double kRounding = 0x1p-23;       // one correctly rounded operation, twice its error
constexpr double kFunctionError = 0x1p-20;  // the polynomials of the kernels

// Of an operation that is correctly rounded in both precisions: what float32 can hold is exact.
Interval rounded(double lo, double hi, bool may_be_nan) {
  if (std::isnan(lo)) lo = -kInfinity;
  if (std::isnan(hi)) hi = kInfinity;
  return {is_float32(lo) ? lo : moved_down(lo, kRounding),
          is_float32(hi) ? hi : moved_up(hi, kRounding), may_be_nan};
}

// Of a function that is only close; `absolute` where results near 0 lose relative precision.
Interval approximate(double lo, double hi, bool may_be_nan, double absolute = 0) {
  if (std::isnan(lo)) lo = -kInfinity;
  if (std::isnan(hi)) hi = kInfinity;
  return {moved_down(lo, kFunctionError) - absolute, moved_up(hi, kFunctionError) + absolute,
          may_be_nan};
}

bool has_infinity(Interval a) { return a.lo == -kInfinity || a.hi == kInfinity; }
bool has_zero(Interval a) { return a.lo <= 0 && a.hi >= 0; }
double largest_size(Interval a) { return std::max(std::fabs(a.lo), std::fabs(a.hi)); }

Interval negate(Interval a) { return {-a.hi, -a.lo, a.may_be_nan}; }

Interval add(Interval a, Interval b) {
  const bool cancels =
      (a.hi == kInfinity && b.lo == -kInfinity) || (a.lo == -kInfinity && b.hi == kInfinity);
  return rounded(a.lo + b.lo, a.hi + b.hi, a.may_be_nan || b.may_be_nan || cancels);
}

template <typename F>
Interval corners(Interval a, Interval b, F f, bool may_be_nan) {
  double lo = kInfinity;
  double hi = -kInfinity;
  for (const double x : {a.lo, a.hi}) {
    for (const double y : {b.lo, b.hi}) {
      const double value = f(x, y);
      if (std::isnan(value)) return {};
      lo = std::min(lo, value);
      hi = std::max(hi, value);
    }
  }
  return rounded(lo, hi, may_be_nan);
}

Interval multiply(Interval a, Interval b) {
  const bool undefined = (has_zero(a) && has_infinity(b)) || (has_zero(b) && has_infinity(a));
  // 0 * infinity apart, infinity is approached by finite numbers, whose product with 0 is 0.
  const auto product = [](double x, double y) { return x == 0 || y == 0 ? 0 : x * y; };
  return corners(a, b, product, a.may_be_nan || b.may_be_nan || undefined);
}

Interval divide(Interval a, Interval b) {
  if (has_zero(b)) return {};
  const bool undefined = has_infinity(a) && has_infinity(b);
  return corners(
      a, b, [](double x, double y) { return x / y; }, a.may_be_nan || b.may_be_nan || undefined);
}

Interval modulo(Interval a, Interval b) {
  const bool undefined = has_infinity(a) || has_zero(b);
  const double size = std::min(largest_size(a), largest_size(b));
  return {a.lo >= 0 ? 0 : -size, a.hi <= 0 ? 0 : size, a.may_be_nan || b.may_be_nan || undefined};
}

Interval wave(Op op, Interval a) {
  const bool may_be_nan = a.may_be_nan || has_infinity(a);
  if (a.lo != a.hi || may_be_nan) return approximate(-1, 1, may_be_nan);
  return approximate(float_op(op, a.lo), float_op(op, a.lo), false, 0x1p-20);
}

Interval power(Interval a, Interval b) {
  // Monotone in each argument where the base is positive.
  if (!(a.lo > 0) || has_infinity(a) || has_infinity(b)) return {};
  const Interval out = corners(
      a, b, [](double x, double y) { return std::pow(x, y); }, a.may_be_nan || b.may_be_nan);
  return approximate(out.lo, out.hi, out.may_be_nan);
}

}  // namespace

Interval hull(Interval a, Interval b) {
  return {std::min(a.lo, b.lo), std::max(a.hi, b.hi), a.may_be_nan || b.may_be_nan};
}

Interval bound_float_value(double value) {
  return std::isnan(value) ? Interval{} : rounded(value, value, false);
}

Interval bound_to_float(IntRange a) {
  return rounded(static_cast<double>(a.lo), static_cast<double>(a.hi), false);
}

IntRange bound_to_int(Interval a) {
  const IntRange out{float_to_int(a.lo), float_to_int(a.hi)};
  return a.may_be_nan ? hull(out, {0, 0}) : out;
}

Interval bound_float_op(Op op, Interval a, Interval b) {
  const bool may_be_nan = a.may_be_nan || b.may_be_nan;
  switch (op) {
    case Op::kNeg:
      return negate(a);
    case Op::kAbs:
      if (a.lo >= 0) return a;
      return a.hi <= 0 ? negate(a) : Interval{0, std::max(-a.lo, a.hi), a.may_be_nan};
    case Op::kAdd:
      return add(a, b);
    case Op::kSub:
      return add(a, negate(b));
    case Op::kMul:
      return multiply(a, b);
    case Op::kDiv:
      return divide(a, b);
    case Op::kMod:
      return modulo(a, b);
    case Op::kMin:
      return {std::min(a.lo, b.lo), std::min(a.hi, b.hi), may_be_nan};
    case Op::kMax:
      return {std::max(a.lo, b.lo), std::max(a.hi, b.hi), may_be_nan};
    case Op::kExp:
    case Op::kTanh:
    case Op::kSigmoid:
      return approximate(float_op(op, a.lo), float_op(op, a.hi), may_be_nan);
    case Op::kLog:
    case Op::kLog2:
      // Nothing is known of a float32 argument that was flushed to 0 but that it gives less.
      return approximate(float_op(op, std::max(a.lo, 0.0)), float_op(op, std::max(a.hi, 0.0)),
                         may_be_nan || a.lo < 0, 0x1p-22);
    case Op::kSqrt:
      return rounded(std::sqrt(std::max(a.lo, 0.0)), std::sqrt(std::max(a.hi, 0.0)),
                     may_be_nan || a.lo < 0);
    case Op::kSin:
    case Op::kCos:
      return wave(op, a);
    case Op::kFloor:
      return {std::floor(a.lo), std::floor(a.hi), may_be_nan};
    case Op::kPow:
      return power(a, b);
    default:
      return {};
  }
}

Truth bound_comparison(Op op, Interval a, Interval b) {
  const bool may_be_nan = a.may_be_nan || b.may_be_nan;
  const auto known = [may_be_nan](bool holds, bool fails) {
    if (fails) return Truth::kFalse;  // as it does for NaN
    return holds && !may_be_nan ? Truth::kTrue : Truth::kMaybe;
  };
  switch (op) {
    case Op::kLt:
      return known(a.hi < b.lo, a.lo >= b.hi);
    case Op::kLe:
      return known(a.hi <= b.lo, a.lo > b.hi);
    case Op::kGt:
    case Op::kGe:
      return bound_comparison(swapped(op), b, a);
    case Op::kEq:
      return known(a.lo == a.hi && b.lo == b.hi && a.lo == b.lo, a.hi < b.lo || b.hi < a.lo);
    case Op::kNe:
      return truth_not(bound_comparison(Op::kEq, a, b));
    default:
      return Truth::kMaybe;
  }
}

}  // namespace flashtile::variant
