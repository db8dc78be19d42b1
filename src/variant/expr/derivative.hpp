// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "variant/expr/expr.hpp"

namespace flashtile::variant {

/// The derivative of a score function with respect to the score; constant where it does not read
/// it.
///
/// A branch that is not taken contributes an exact 0, whatever its own derivative would be: factors
/// are moved into the branches of a select. Where functions have no derivative: abs has 0 at 0, min
/// and max share equally between equal arguments, floor, conversions to integers and comparisons
/// have 0, fmod(a, b) counts as a - b trunc(a / b) with a fixed quotient, and the exponent of pow
/// gets nothing where the base is not positive.
Expr derivative_score(const Expr& expr);

/// A place where a score function reads a floating aux tensor.
struct LoadSite {
  int32_t aux_idx = 0;      ///< into `expr.aux`
  std::vector<Expr> index;  ///< int; what is read, valid where `active`
  Expr active;              ///< bool: the path condition under which the load is executed
  Expr derivative;          ///< d root / d load; 0 where not `active`
};

/// Every floating load that the root depends on differentiably, in the order of the nodes. Loads of
/// one element (the same tensor at the same index) are one site.
std::vector<LoadSite> load_gradients(const Expr& expr);

}  // namespace flashtile::variant
