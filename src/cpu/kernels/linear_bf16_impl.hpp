// SPDX-License-Identifier: Apache-2.0
#pragma once

// The kernels of scalar decay over bf16 pairs, for instruction sets with kHasBf16Dot. Results are
// rounded to 16 bits: the cheaper exponential is exact enough.

#include "cpu/kernels/linear_kernels.hpp"
#include "cpu/kernels/scalar_decay_operand_kernels.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

constexpr ScalarDecayOperandKernels kPairKernels =
    scalar_decay_operand_kernels<Bf16Operands, Exp2Fast>();

const ScalarDecayOperandKernels& scalar_decay_pair_kernels() { return kPairKernels; }

}  // namespace flashtile::cpu::FLASHTILE_ISA
