// SPDX-License-Identifier: Apache-2.0
#pragma once

// The table of scalar-decay kernels of one instruction set; included by one file for each.

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

inline int64_t scalar_decay_dk_ld(const ScalarDecayShape& shape) { return tile_ld(shape.head_dim); }

template <class Operands, class F>
constexpr ScalarDecayOperandKernels scalar_decay_operand_kernels() {
  return {scalar_decay_fwd_scratch_bytes<Operands>, scalar_decay_fwd_chunk<F, Operands>,
          scalar_decay_bwd_scratch_bytes<Operands>, scalar_decay_bwd_state<F, Operands>,
          scalar_decay_bwd_chunk<F, Operands>};
}

/// Where a result is rounded to 16 bits the cheaper exponential is exact enough.
#if defined(__AVX512BF16__)
constexpr ScalarDecayKernels kScalarDecayKernels = {
    scalar_decay_state_ld, scalar_decay_dk_ld, scalar_decay_operand_kernels<FloatOperands, Exp2>(),
    scalar_decay_operand_kernels<Bf16Operands, Exp2Fast>()};
#else
constexpr ScalarDecayKernels kScalarDecayKernels = {
    scalar_decay_state_ld,
    scalar_decay_dk_ld,
    scalar_decay_operand_kernels<FloatOperands, Exp2>(),
    {}};
#endif

const ScalarDecayKernels& scalar_decay_kernels() { return kScalarDecayKernels; }

}  // namespace flashtile::cpu::FLASHTILE_ISA
