// SPDX-License-Identifier: Apache-2.0
#pragma once

// bfloat16 in memory, by integers, the same text for all instruction sets.

#include "cpu/simd/types.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

FLASHTILE_INLINE Vf load(const Bf16* p) { return as_vf(load_u16(&p->bits) << 16); }
FLASHTILE_INLINE Vf load_partial(const Bf16* p, int64_t count) {
  return as_vf(load_u16_partial(&p->bits, count) << 16);
}
/// The bfloat16 of each lane in its low half: nearest even, NaN made quiet.
FLASHTILE_INLINE Vu to_bf16_bits(Vf x) {
  const Vu u = as_vu(x);
  const Vu rounded = (u + broadcast_u(0x7FFF) + ((u >> 16) & broadcast_u(1))) >> 16;
  return select(x != x, (u >> 16) | broadcast_u(0x40), rounded);
}
FLASHTILE_INLINE void store(Bf16* p, Vf x) { store_u16(&p->bits, to_bf16_bits(x)); }
FLASHTILE_INLINE void store_partial(Bf16* p, Vf x, int64_t count) {
  store_u16_partial(&p->bits, to_bf16_bits(x), count);
}

/// As store; the Bf16 form may flush subnormals to zero where that is faster.
FLASHTILE_INLINE void store_flush(float* p, Vf x) { store(p, x); }
#if !defined(__AVX512BF16__)  // simd_avx512_bf16.hpp has an instruction for it
FLASHTILE_INLINE void store_flush(Bf16* p, Vf x) { store(p, x); }
#endif

}  // namespace flashtile::cpu::FLASHTILE_ISA
