// SPDX-License-Identifier: Apache-2.0
#include "unit/simd_table_impl.hpp"

namespace flashtile::testing {

SimdTable simd_table_avx512() { return cpu::avx512::make_table(cpu::Isa::kAvx512); }

}  // namespace flashtile::testing
