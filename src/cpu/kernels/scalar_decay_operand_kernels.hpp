// SPDX-License-Identifier: Apache-2.0
#pragma once

// The kernels of scalar decay over one kind of operands as a table.

#include "cpu/kernels/scalar_decay_bwd.hpp"
#include "cpu/kernels/scalar_decay_fwd.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

template <class Operands>
int64_t scalar_decay_fwd_scratch_bytes(const ScalarDecayShape& shape) {
  return ScalarDecayFwdScratch<Operands>(nullptr, shape).bytes;
}

template <class Operands>
int64_t scalar_decay_bwd_scratch_bytes(const ScalarDecayShape& shape) {
  return ScalarDecayBwdScratch<Operands>(nullptr, shape).bytes;
}

template <class Operands, class F>
constexpr ScalarDecayOperandKernels scalar_decay_operand_kernels() {
  return {scalar_decay_fwd_scratch_bytes<Operands>,
          with_products<Operands, scalar_decay_fwd_chunk<F, Operands>>,
          scalar_decay_bwd_scratch_bytes<Operands>,
          with_products<Operands, scalar_decay_bwd_state<F, Operands>>,
          with_products<Operands, scalar_decay_bwd_divisors<F, Operands>>,
          with_products<Operands, scalar_decay_bwd_dstate<F, Operands>>,
          with_products<Operands, scalar_decay_bwd_chunk<F, Operands>>};
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
