// SPDX-License-Identifier: Apache-2.0
#include "unit/strip_runner_impl.hpp"

namespace flashtile::variant::testing {

const StripInterpreter kStripAvx512 = {"avx512", cpu::avx512::strip_bytes, cpu::avx512::run_row};

}  // namespace flashtile::variant::testing
