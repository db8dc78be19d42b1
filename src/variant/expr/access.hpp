// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "variant/expr/expr.hpp"

namespace flashtile::variant {

/// A set of variables, a bit for each.
using VariableSet = uint16_t;

constexpr VariableSet variable_bit(Variable variable) {
  return static_cast<VariableSet>(1u << static_cast<unsigned>(variable));
}

inline constexpr VariableSet kQueryBit = variable_bit(Variable::kQIdx);
inline constexpr VariableSet kKeyBit = variable_bit(Variable::kKIdx);

/// For each node the variables that it depends on.
std::vector<VariableSet> variables_of_nodes(const Expr& expr);

/// True if the value of `node` may depend on the variable.
bool depends_on(const Expr& expr, int32_t node, Variable variable);

/// True if the root may depend on the score.
bool reads_score(const Expr& expr);

/// How the element that a load reads moves over a block of queries and keys.
enum class AccessClass : uint8_t {
  kScalar,    ///< one element for all of them
  kRow,       ///< by q_idx only
  kColumn,    ///< by k_idx only
  kDiagonal,  ///< by q_idx - k_idx only
  kGeneral,
};

/// The class of a load with these index expressions.
AccessClass access_class(std::span<const Expr> index);

/// True if the keys of a row all read different elements: some index is k_idx times a number, and
/// something that does not depend on it.
bool is_own_of_key(std::span<const Expr> index);

/// The class of the load `load` of an expression.
AccessClass access_class(const Expr& expr, int32_t load);

}  // namespace flashtile::variant
