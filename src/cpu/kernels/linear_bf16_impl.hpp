// SPDX-License-Identifier: Apache-2.0
#pragma once

// The kernels of scalar decay, of the delta rule with it and of vector decay, over bf16 pairs, for
// instruction sets with kHasBf16Dot. Results are rounded to 16 bits: scalar decay's cheaper
// exponential is exact enough.

#include "cpu/kernels/delta_chunk_bwd.hpp"
#include "cpu/kernels/linear_kernels.hpp"
#include "cpu/kernels/scalar_decay_operand_kernels.hpp"
#include "cpu/kernels/vector_decay_keys.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

constexpr ScalarDecayOperandKernels kPairKernels =
    scalar_decay_operand_kernels<Bf16Operands, Exp2Fast>();

constexpr ScalarDecayOperandKernels kDeltaPairKernels = [] {
  ScalarDecayOperandKernels kernels = delta_chunk_kernels<Bf16Operands, Exp2Fast>();
  kernels.fwd_scratch_bytes = kPairKernels.fwd_scratch_bytes;
  kernels.fwd_chunk = kPairKernels.fwd_chunk;
  return kernels;
}();

inline int64_t vector_decay_bwd_bytes(int64_t head_dim, int64_t head_dim_v, int64_t num_members) {
  const int64_t keys = vector_decay_keys_bytes(head_dim_v, num_members);
  const int64_t values = vector_decay_values_bytes(head_dim, num_members);
  return keys > values ? keys : values;
}

constexpr VectorDecayPairKernels kVectorDecayPairKernels = {
    vector_decay_scratch_bytes,
    with_products<Bf16Operands, vector_decay_fwd_chunk>,
    vector_decay_bwd_bytes,
    vector_decay_kept_elements,
    with_products<Bf16Operands, vector_decay_values>,
    with_products<Bf16Operands, vector_decay_keys>};

const ScalarDecayOperandKernels& scalar_decay_pair_kernels() { return kPairKernels; }
const ScalarDecayOperandKernels& delta_pair_kernels() { return kDeltaPairKernels; }
const VectorDecayPairKernels& vector_decay_pair_kernels() { return kVectorDecayPairKernels; }

}  // namespace flashtile::cpu::FLASHTILE_ISA
