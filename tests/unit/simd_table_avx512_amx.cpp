// SPDX-License-Identifier: Apache-2.0
#include "unit/simd_table_impl.hpp"

namespace flashtile::testing {

SimdTable simd_table_avx512_amx() { return cpu::avx512_amx::make_table(cpu::Isa::kAvx512Amx); }

}  // namespace flashtile::testing
