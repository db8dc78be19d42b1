// SPDX-License-Identifier: Apache-2.0
#include "unit/simd_table_impl.hpp"

namespace flashtile::testing {

SimdTable simd_table_avx2() { return cpu::avx2::make_table(cpu::Isa::kAvx2); }

}  // namespace flashtile::testing
