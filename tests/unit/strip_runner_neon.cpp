// SPDX-License-Identifier: Apache-2.0
#include "unit/strip_runner_impl.hpp"

namespace flashtile::variant::testing {

const StripInterpreter kStripNeon = {"neon", cpu::neon::strip_bytes, cpu::neon::run_row};

}  // namespace flashtile::variant::testing
