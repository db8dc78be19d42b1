// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "variant/expr/op.hpp"

namespace flashtile::variant {

/// The integers from lo to hi, both included.
struct IntRange {
  int64_t lo = std::numeric_limits<int64_t>::min();
  int64_t hi = std::numeric_limits<int64_t>::max();

  bool is_point() const { return lo == hi; }
};

/// Floats from lo to hi, and perhaps NaN. An interval that results from an operation holds what
/// double arithmetic gives and what float32 arithmetic gives, rounding and overflow included, so
/// that a decision made from it holds for the reference and for the kernels.
struct Interval {
  double lo = -std::numeric_limits<double>::infinity();
  double hi = std::numeric_limits<double>::infinity();
  bool may_be_nan = true;
};

enum class Truth : uint8_t { kFalse, kTrue, kMaybe };

/// Every value that an int operation of scalar_ops.hpp takes for arguments in a and b. Exact for
/// points; everything where an overflow is possible.
IntRange bound_int_op(Op op, IntRange a, IntRange b = {0, 0});

/// The same for float operations.
Interval bound_float_op(Op op, Interval a, Interval b = {0, 0, false});

/// A constant or parameter, of which kernels see the nearest float32.
Interval bound_float_value(double value);
Interval bound_to_float(IntRange a);
IntRange bound_to_int(Interval a);

IntRange hull(IntRange a, IntRange b);
Interval hull(Interval a, Interval b);

Truth bound_comparison(Op op, IntRange a, IntRange b);
Truth bound_comparison(Op op, Interval a, Interval b);

constexpr Truth truth_of(bool value) { return value ? Truth::kTrue : Truth::kFalse; }

constexpr Truth truth_not(Truth a) {
  if (a == Truth::kMaybe) return a;
  return truth_of(a == Truth::kFalse);
}

constexpr Truth truth_and(Truth a, Truth b) {
  if (a == Truth::kFalse || b == Truth::kFalse) return Truth::kFalse;
  return a == Truth::kTrue ? b : a;
}

constexpr Truth truth_or(Truth a, Truth b) {
  return truth_not(truth_and(truth_not(a), truth_not(b)));
}

}  // namespace flashtile::variant
