// SPDX-License-Identifier: Apache-2.0
#pragma once

// The text behind gemm_bf16.hpp, for instruction sets with tile registers.

#include "cpu/kernels/gemm_impl.hpp"
#include "cpu/kernels/gemm_tiles.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

void gemm_bf16(int64_t m, int64_t n, int64_t k, const GemmPairsA& a, const Bf16* b, int64_t ldb,
               const GemmC& out) {
  multiply_tiles<AmxTiles>(m, n, k, a, b, ldb, out);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
