// SPDX-License-Identifier: Apache-2.0
#include "unit/simd_table.hpp"

namespace flashtile::testing {

SimdTable simd_table_scalar();
SimdTable simd_table_avx2();
SimdTable simd_table_avx512();
SimdTable simd_table_avx512_bf16();
SimdTable simd_table_avx512_amx();
SimdTable simd_table_neon();

std::vector<const SimdTable*> simd_tables() {
  std::vector<const SimdTable*> tables;
  // A table's own constructor may use its instruction set, so it runs only where the CPU has that.
  const auto add = [&tables](cpu::Isa isa, SimdTable (*make)()) {
    static const SimdTable* made[cpu::kNumIsas] = {};
    if (!cpu::cpu_info().has(isa)) return;
    const SimdTable*& table = made[static_cast<int>(isa)];
    if (table == nullptr) table = new SimdTable(make());
    tables.push_back(table);
  };
  add(cpu::Isa::kScalar, simd_table_scalar);
#if defined(__x86_64__)
  add(cpu::Isa::kAvx2, simd_table_avx2);
  add(cpu::Isa::kAvx512, simd_table_avx512);
  add(cpu::Isa::kAvx512Bf16, simd_table_avx512_bf16);
  add(cpu::Isa::kAvx512Amx, simd_table_avx512_amx);
#elif defined(__aarch64__)
  add(cpu::Isa::kNeon, simd_table_neon);
#endif
  return tables;
}

std::vector<const SimdTable*> bf16_dot_tables() {
  std::vector<const SimdTable*> tables = simd_tables();
  std::erase_if(tables, [](const SimdTable* table) { return !table->has_bf16_dot; });
  return tables;
}

}  // namespace flashtile::testing
