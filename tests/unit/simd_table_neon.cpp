// SPDX-License-Identifier: Apache-2.0
#include "unit/simd_table_impl.hpp"

namespace flashtile::testing {

SimdTable simd_table_neon() { return cpu::neon::make_table(cpu::Isa::kNeon); }

}  // namespace flashtile::testing
