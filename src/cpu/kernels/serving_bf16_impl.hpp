// SPDX-License-Identifier: Apache-2.0
#pragma once

// The kernels of decoding over bf16 pairs, for instruction sets with kHasBf16Dot.

#include "cpu/kernels/attention_decode.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

constexpr DecodeKernels kPairKernels = {decode_ld, decode_scratch_bytes, decode_queries,
                                        decode_tile, decode_finish};

const DecodeKernels& decode_pair_kernels() { return kPairKernels; }

}  // namespace flashtile::cpu::FLASHTILE_ISA
