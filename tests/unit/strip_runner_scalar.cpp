// SPDX-License-Identifier: Apache-2.0
#include "unit/strip_runner_impl.hpp"

namespace flashtile::variant::testing {

const StripInterpreter kStripScalar = {"scalar", cpu::scalar::strip_bytes, cpu::scalar::run_row};

}  // namespace flashtile::variant::testing
