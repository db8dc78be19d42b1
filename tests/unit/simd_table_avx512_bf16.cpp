// SPDX-License-Identifier: Apache-2.0
#include "unit/simd_table_impl.hpp"

namespace flashtile::testing {

SimdTable simd_table_avx512_bf16() { return cpu::avx512_bf16::make_table(cpu::Isa::kAvx512Bf16); }

}  // namespace flashtile::testing
