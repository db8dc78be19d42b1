// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "variant/expr/op.hpp"

/// What each operation does to one number: the definition that constant folding, the evaluator of
/// the reference and the tests of everything faster go by. Total: no operation traps.
namespace flashtile::variant {

inline int64_t wrap(uint64_t bits) { return std::bit_cast<int64_t>(bits); }

/// Towards zero; a divisor of 0 gives 0, and the one overflow wraps.
inline int64_t int_div(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return wrap(uint64_t{0} - static_cast<uint64_t>(a));
  return a / b;
}

/// The remainder of int_div: it has the sign of a.
inline int64_t int_mod(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }

/// Towards minus infinity.
inline int64_t floor_div(int64_t a, int64_t b) {
  const int64_t quotient = int_div(a, b);
  const int64_t remainder = int_mod(a, b);
  return remainder != 0 && (remainder < 0) != (b < 0) ? quotient - 1 : quotient;
}

/// The remainder of floor_div: it has the sign of b.
inline int64_t floor_mod(int64_t a, int64_t b) {
  const int64_t remainder = int_mod(a, b);
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

/// Truncated towards zero; saturates, and NaN gives 0.
inline int64_t float_to_int(double x) {
  if (std::isnan(x)) return 0;
  if (x >= 0x1p63) return std::numeric_limits<int64_t>::max();
  if (x < -0x1p63) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(x);
}

/// Operations on integers that give an integer; `b` is ignored by those of one argument.
inline int64_t int_op(Op op, int64_t a, int64_t b = 0) {
  const auto ua = static_cast<uint64_t>(a);
  const auto ub = static_cast<uint64_t>(b);
  switch (op) {
    case Op::kNeg:
      return wrap(0 - ua);
    case Op::kAbs:
      return a < 0 ? wrap(0 - ua) : a;
    case Op::kAdd:
      return wrap(ua + ub);
    case Op::kSub:
      return wrap(ua - ub);
    case Op::kMul:
      return wrap(ua * ub);
    case Op::kMin:
      return a < b ? a : b;
    case Op::kMax:
      return a > b ? a : b;
    case Op::kDiv:
      return int_div(a, b);
    case Op::kMod:
      return int_mod(a, b);
    case Op::kFloorDiv:
      return floor_div(a, b);
    case Op::kFloorMod:
      return floor_mod(a, b);
    case Op::kBitAnd:
      return a & b;
    case Op::kBitOr:
      return a | b;
    case Op::kBitXor:
      return a ^ b;
    case Op::kShl:
      return wrap(ua << (ub & 63));
    case Op::kShr:
      return a >> (ub & 63);
    default:
      return 0;
  }
}

inline double float_min(double a, double b) {
  if (std::isnan(a)) return a;
  return a < b ? a : b;  // b when b is NaN
}

inline double float_max(double a, double b) {
  if (std::isnan(a)) return a;
  return a > b ? a : b;
}

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// Operations on floats that give a float; `b` is ignored by those of one argument.
inline double float_op(Op op, double a, double b = 0) {
  switch (op) {
    case Op::kNeg:
      return -a;
    case Op::kAbs:
      return std::fabs(a);
    case Op::kAdd:
      return a + b;
    case Op::kSub:
      return a - b;
    case Op::kMul:
      return a * b;
    case Op::kMin:
      return float_min(a, b);
    case Op::kMax:
      return float_max(a, b);
    case Op::kDiv:
      return a / b;
    case Op::kMod:
      return std::fmod(a, b);
    case Op::kExp:
      return std::exp(a);
    case Op::kLog:
      return std::log(a);
    case Op::kLog2:
      return std::log2(a);
    case Op::kTanh:
      return std::tanh(a);
    case Op::kSigmoid:
      return sigmoid(a);
    case Op::kSqrt:
      return std::sqrt(a);
    case Op::kSin:
      return std::sin(a);
    case Op::kCos:
      return std::cos(a);
    case Op::kFloor:
      return std::floor(a);
    case Op::kPow:
      return std::pow(a, b);
    default:
      return 0;
  }
}

/// The six comparisons.
template <typename T>
bool compare(Op op, T a, T b) {
  switch (op) {
    case Op::kEq:
      return a == b;
    case Op::kNe:
      return a != b;
    case Op::kLt:
      return a < b;
    case Op::kLe:
      return a <= b;
    case Op::kGt:
      return a > b;
    case Op::kGe:
      return a >= b;
    default:
      return false;
  }
}

inline bool is_comparison(Op op) { return op >= Op::kEq && op <= Op::kGe; }

/// Operations on floats only: exp to pow.
inline bool is_float_function(Op op) { return op >= Op::kExp && op <= Op::kPow; }

/// Operations on integers only.
inline bool is_int_function(Op op) { return op >= Op::kFloorDiv && op <= Op::kShr; }

/// The comparison with its sides exchanged: a < b is b > a.
inline Op swapped(Op op) {
  switch (op) {
    case Op::kLt:
      return Op::kGt;
    case Op::kLe:
      return Op::kGe;
    case Op::kGt:
      return Op::kLt;
    case Op::kGe:
      return Op::kLe;
    default:
      return op;
  }
}

/// The comparison that holds where `op` does not, for numbers that are not NaN.
inline Op negated(Op op) {
  switch (op) {
    case Op::kEq:
      return Op::kNe;
    case Op::kNe:
      return Op::kEq;
    case Op::kLt:
      return Op::kGe;
    case Op::kLe:
      return Op::kGt;
    case Op::kGt:
      return Op::kLe;
    case Op::kGe:
      return Op::kLt;
    default:
      return op;
  }
}

}  // namespace flashtile::variant
