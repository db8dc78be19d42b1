// SPDX-License-Identifier: Apache-2.0
#include "unit/strip_runner_impl.hpp"

namespace flashtile::variant::testing {

const StripInterpreter kStripAvx2 = {"avx2", cpu::avx2::strip_bytes, cpu::avx2::run_row};

}  // namespace flashtile::variant::testing
