// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "variant/expr/expr.hpp"

namespace flashtile::variant {

enum class PrintStyle {
  kText,    ///< the expression language: parses back to an equal expression
  kDevice,  ///< statements of C++ for NVRTC, see below
};

/// An expression as text.
///
/// Device text is the inside of a function: `const auto v0 = ...;` for each value, then
/// `return vN;`. It has no branch and includes nothing. Names that it takes from its surroundings:
///
///   Bool, Int, Float       types; Int(5ll) and Float(0.5f) make constants, Bool(true) too
///   score, batch, head, head_kv, q_idx, k_idx, seqlen_q, seqlen_k, query_offset, leftpad
///   param_NAME             for param.NAME
///   aux_NAME(active, i, j) element [i, j] of an aux tensor; must read nothing where `active` is
///                          false, and may then give anything. Indices are Int
///   + - * and unary -      of Int or Float; / of Float; == != < <= > >=; & | ^ of Int
///   select(c, a, b), logical_not(a), logical_and(a, b), logical_or(a, b)
///   to_int, to_float, to_bool
///   int_div, int_mod, floor_div, floor_mod, shift_left, shift_right    as in scalar_ops.hpp
///   abs, min, max          of Int or Float; the float min and max propagate NaN
///   exp, log, log2, tanh, sigmoid, sqrt, sin, cos, floor, pow, fmod
///   infinity(), not_a_number()
///
/// Throws Error(kUnsupported) for text of absurd size (shared subtrees are repeated in kText).
std::string print(const Expr& expr, PrintStyle style = PrintStyle::kText);

/// Device text for several roots, which share what they have in common; it ends with `out0 = v7;`
/// and so on instead of the return.
std::string print_device(std::span<const Expr> roots);

/// Device text of one expression in three functions, so that what belongs to a query (or to the
/// head) or to a key alone is worked out once for it. The first two make values that the third one
/// finds as members of `row` and `column`, by the same names with a final underscore.
struct SplitText {
  std::string row, column, pair;  ///< statements; `pair` ends with the return
  std::vector<std::string> row_values, column_values;
};
SplitText print_split(const Expr& expr);

}  // namespace flashtile::variant
