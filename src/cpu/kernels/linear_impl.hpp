// SPDX-License-Identifier: Apache-2.0
#pragma once

// The table of linear attention's kernels of one instruction set; included by one file for each.

#include "cpu/kernels/delta_bwd.hpp"
#include "cpu/kernels/delta_chunk_bwd.hpp"
#include "cpu/kernels/linear_kernels.hpp"
#include "cpu/kernels/recurrent_bwd.hpp"
#include "cpu/kernels/scalar_decay_operand_kernels.hpp"
#include "cpu/kernels/scan.hpp"
#include "cpu/kernels/selective_scan.hpp"
#include "cpu/kernels/short_conv.hpp"
#include "cpu/kernels/slots.hpp"
#include "cpu/kernels/slstm.hpp"
#include "cpu/kernels/state_step.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

inline int64_t scalar_decay_dk_ld(const ScalarDecayShape& shape) {
  return deep_tile_ld(shape.head_dim);
}

inline constexpr RecurrentKernels kRecurrentKernels = {
    kStripWidth,
    recurrent_scratch_bytes,
    recurrent_load_strips,
    recurrent_store_strips,
    recurrent_fwd_chunk,
    state_step,
    recurrent_bwd_scratch_bytes,
    recurrent_bwd_queries,
    recurrent_state_dots,
    recurrent_bwd_keys,
    {delta_bwd_scratch_bytes, delta_values_forward, delta_state_dots, delta_values_backward,
     delta_keys_backward, delta_finish_state, delta_finish_keys}};

inline constexpr SlotsKernels kSlotsKernels = {slots_scratch_bytes, slots_fwd_chunk,
                                               slots_bwd_queries, slots_state_dots, slots_bwd_keys};

inline constexpr ScanKernels kHgrnKernels = {hgrn_fwd_scratch_bytes, hgrn_fwd_chunk,
                                             hgrn_bwd_scratch_bytes, hgrn_bwd_chunk};
inline constexpr ScanKernels kMamba1Kernels = {mamba1_fwd_scratch_bytes, mamba1_fwd_chunk,
                                               mamba1_bwd_scratch_bytes, mamba1_bwd_chunk};
inline constexpr ScanKernels kRwkv4Kernels = {rwkv4_fwd_scratch_bytes, rwkv4_fwd_chunk,
                                              rwkv4_bwd_scratch_bytes, rwkv4_bwd_chunk};

constexpr LinearKernels kLinearKernels = {{scalar_decay_state_ld, scalar_decay_dk_ld,
                                           scalar_decay_operand_kernels<FloatOperands, Exp2>()},
                                          kRecurrentKernels,
                                          kSlotsKernels,
                                          kHgrnKernels,
                                          kMamba1Kernels,
                                          kRwkv4Kernels,
                                          kSlstmKernels,
                                          kShortConvKernels,
                                          kLogDecayGateKernels,
                                          kGatedNormKernels,
                                          kFeatureMapKernels};

const LinearKernels& linear_kernels() { return kLinearKernels; }

#if defined(__AVX512F__)  // for AVX-512 alone: in each set they take a second to build
constexpr ScalarDecayOperandKernels kDeltaFloatKernels = delta_chunk_kernels<FloatOperands, Exp2>();

const ScalarDecayOperandKernels& delta_float_kernels() { return kDeltaFloatKernels; }
#endif

}  // namespace flashtile::cpu::FLASHTILE_ISA
