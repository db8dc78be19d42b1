// SPDX-License-Identifier: Apache-2.0
//
// What one instruction set offers to the launchers of linear attention.
#pragma once

#include "cpu/kernels/layer_part_types.hpp"
#include "cpu/kernels/recurrent_types.hpp"
#include "cpu/kernels/scalar_decay_types.hpp"
#include "cpu/kernels/scan_types.hpp"
#include "cpu/kernels/slots_types.hpp"
#include "cpu/kernels/slstm_types.hpp"

namespace flashtile::cpu {

struct LinearKernels {
  ScalarDecayKernels scalar_decay;
  RecurrentKernels recurrent;
  SlotsKernels slots;
  ScanKernels hgrn, mamba1, rwkv4;
  SlstmKernels slstm;
  LayerPartKernels short_conv, log_decay_gate, gated_norm, feature_map;
};

// One for each instruction set that this build has; see src/cpu/registry.cpp.
namespace scalar {
const LinearKernels& linear_kernels();
}
namespace avx2 {
const LinearKernels& linear_kernels();
}
namespace avx512 {
const LinearKernels& linear_kernels();
const ScalarDecayOperandKernels& delta_float_kernels();
}  // namespace avx512
namespace neon {
const LinearKernels& linear_kernels();
}

// Of an instruction set with a dot product of bf16 pairs: what it adds to the set below it.
namespace avx512_bf16 {
const ScalarDecayOperandKernels& scalar_decay_pair_kernels();
const ScalarDecayOperandKernels& delta_pair_kernels();
const VectorDecayPairKernels& vector_decay_pair_kernels();
}  // namespace avx512_bf16
namespace avx512_amx {
const ScalarDecayOperandKernels& scalar_decay_pair_kernels();
const ScalarDecayOperandKernels& delta_pair_kernels();
const VectorDecayPairKernels& vector_decay_pair_kernels();
}  // namespace avx512_amx

}  // namespace flashtile::cpu
