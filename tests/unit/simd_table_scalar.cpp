// SPDX-License-Identifier: Apache-2.0
#include "unit/simd_table_impl.hpp"

namespace flashtile::testing {

SimdTable simd_table_scalar() { return cpu::scalar::make_table(cpu::Isa::kScalar); }

}  // namespace flashtile::testing
