// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "variant/expr/expr.hpp"
#include "variant/expr/strip_program.hpp"

namespace flashtile::variant {

/// An instruction before it has registers: arguments are numbers of earlier values.
struct StripValue {
  StripInstruction instruction;  ///< op, type, variable, aux and constants only
  Type type = Type::kBool;       ///< of the result
  Rank rank = Rank::kTile;
  std::vector<int32_t> args;
  int32_t predicate = -1;  ///< kLoad: a bool value that is true where the load is executed
};

/// Expressions as a list of values without any laziness: every value may be worked out in every
/// case, because loads are told by their predicates where they must not read.
struct Lowered {
  std::vector<StripValue> values;
  std::vector<int32_t> roots;  ///< the value of each root
  std::vector<AuxSignature> aux;
  std::vector<std::string> params;
};

/// Throws Error(kUnsupported) for expressions of absurd size.
Lowered lower(std::span<const Expr> roots);

}  // namespace flashtile::variant
