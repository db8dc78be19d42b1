// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "variant/expr/program.hpp"

namespace flashtile::variant {

/// An instruction before it has registers: arguments are numbers of earlier values.
struct StripValue {
  StripInstruction instruction;
  Type type = Type::kBool;  ///< of the result
  Rank rank = Rank::kTile;
  std::vector<int32_t> args;
  int32_t predicate = -1;  ///< a value; -1 for none
};

/// Orders values by rank, copies scalars into strips where strips need them, and gives registers:
/// one for good to everything but what only element instructions use, which share. `roots` are the
/// values that become outputs.
Program allocate_registers(std::vector<StripValue> values, std::span<const int32_t> roots);

}  // namespace flashtile::variant
