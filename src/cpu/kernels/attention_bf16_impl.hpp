// SPDX-License-Identifier: Apache-2.0
#pragma once

// The attention kernels over bf16 pairs, for instruction sets with kHasBf16Dot.

#include "cpu/kernels/attention_operand_kernels.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

constexpr OperandKernels kPairKernels = operand_kernels<Bf16Operands>();

const OperandKernels& attention_pair_kernels() { return kPairKernels; }

}  // namespace flashtile::cpu::FLASHTILE_ISA
