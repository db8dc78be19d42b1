// SPDX-License-Identifier: Apache-2.0
#pragma once

// The text behind gemm_bf16.hpp, for instruction sets with kHasBf16Dot.

#include "cpu/kernels/gemm_bf16.hpp"
#include "cpu/kernels/gemm_impl.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

struct PairStep {
  using Element = Bf16;
  static constexpr int kStepWidth = 2;
  static FLASHTILE_INLINE Vu load_a(const Bf16* p) {
    uint32_t pair;
    __builtin_memcpy(&pair, p, sizeof(pair));
    return broadcast_u(pair);
  }
  static FLASHTILE_INLINE Vu load_b(const Bf16* p) {
    Vu pairs;
    __builtin_memcpy(&pairs, p, sizeof(pairs));
    return pairs;
  }
  static FLASHTILE_INLINE Vf add(Vu a, Vu b, Vf c) { return dot_pairs(a, b, c); }
};

void gemm_bf16(int64_t m, int64_t n, int64_t k, const GemmPairsA& a, const Bf16* b, int64_t ldb,
               const GemmC& out) {
  gemm_with<PairStep>({a.data, a.row_stride, a.pair_stride, b, 2 * ldb, (k + 1) / 2}, m, n, out);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
