// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "variant/expr/expr.hpp"

namespace flashtile::variant {

/// `outer` with `inner` in the place of the score. Aux tensors and parameters of one name are one.
Expr compose(const Expr& outer, const Expr& inner);

/// True where all masks are, asked from left to right; an empty list is true.
Expr conjunction(std::span<const Expr> masks);

/// The masks that have to hold for `mask` to hold, left to right; nested && and !(a || b) are taken
/// apart. A conjunct may rely on the ones before it: it is asked only where they hold.
std::vector<Expr> conjuncts(const Expr& mask);

/// `expr` with the numbers `values`, in the order of `expr.params`, in the place of `int(param)`.
Expr with_whole_params(Expr expr, std::span<const double> values);

/// The same expression rebuilt by ExprBuilder: simplified, without what is not used.
Expr simplify(const Expr& expr);

/// The part of `expr` whose root is `node`.
Expr subexpression(const Expr& expr, int32_t node);

}  // namespace flashtile::variant
