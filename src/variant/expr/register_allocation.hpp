// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "variant/expr/lower.hpp"
#include "variant/expr/program.hpp"

namespace flashtile::variant {

/// Orders values by rank, copies scalars into strips where strips need them, and gives registers:
/// one for good to everything but what only element instructions use, which share. `roots` are the
/// values that become outputs.
Program allocate_registers(std::vector<StripValue> values, std::span<const int32_t> roots);

}  // namespace flashtile::variant
