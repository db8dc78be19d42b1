// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "flashtile/tensor.hpp"
#include "variant/expr/builder.hpp"
#include "variant/expr/expr.hpp"

namespace flashtile::variant {

/// For each node of `expr` the condition under which it is evaluated, lazily, as a node of
/// `builder`. `ids` are the builder's ids of the nodes.
std::vector<ExprBuilder::Id> path_conditions(ExprBuilder& builder, const Expr& expr,
                                             std::span<const ExprBuilder::Id> ids);

/// What stands for the score in an index_violation: an aux tensor of this name with one element.
inline constexpr std::string_view kAnyScore = ".score";

/// True where `guard` holds (empty: everywhere) and `expr` reads an element that its aux tensor
/// does not have. `aux` in the order of `expr.aux`: only their shapes count.
Expr index_violation(const Expr& expr, std::span<const TensorView> aux, const Expr& guard);

}  // namespace flashtile::variant
