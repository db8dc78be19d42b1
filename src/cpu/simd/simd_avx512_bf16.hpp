// SPDX-License-Identifier: Apache-2.0
#pragma once

// AVX-512 with the bfloat16 dot product. See simd.hpp for the contract.

#include "cpu/simd/simd_avx512.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

#if defined(FLASHTILE_EMULATE_CPU)
/// As the instructions do it, for tests on CPUs without them.
FLASHTILE_INLINE Vf flush_subnormal(Vf x) {
  const Vu bits = as_vu(x);
  const Mf is_small = (bits & broadcast_u(0x7F800000)) == broadcast_u(0);
  return as_vf(select(is_small, bits & broadcast_u(0x80000000), bits));
}
FLASHTILE_INLINE Vf dot_pairs(Vu a, Vu b, Vf c) {
  const auto low = [](Vu x) { return flush_subnormal(as_vf(x << 16)); };
  const auto high = [](Vu x) { return flush_subnormal(as_vf(x & broadcast_u(0xFFFF0000))); };
  const Vf sum = flush_subnormal(fma(high(a), high(b), flush_subnormal(c)));
  return flush_subnormal(fma(low(a), low(b), sum));
}
FLASHTILE_INLINE Vu to_bf16_bits(Vf x);  // bf16.hpp
FLASHTILE_INLINE Vu round_neighbours(Vf first, Vf second) {
  uint16_t halves[2 * kLanes];
  store_u16(halves, to_bf16_bits(flush_subnormal(first)));
  store_u16(halves + kLanes, to_bf16_bits(flush_subnormal(second)));
  Vu result;
  __builtin_memcpy(&result, halves, sizeof(halves));
  return result;
}
FLASHTILE_INLINE void store_flush(Bf16* p, Vf x) {
  store_u16(&p->bits, to_bf16_bits(flush_subnormal(x)));
}
#else
/// Pairs of bfloat16, one pair a lane, the element with the lower index in the low half.
/// c + a.low * b.low + a.high * b.high; subnormals count as zero.
FLASHTILE_INLINE Vf dot_pairs(Vu a, Vu b, Vf c) {
#if defined(__clang__) && __clang_major__ < 18
  // The optimiser of clang 16 runs out of stack on casts to vectors of bfloat16.
  asm("vdpbf16ps %2, %1, %0" : "+v"(c.v) : "v"(a.v), "v"(b.v));
  return c;
#else
  return {_mm512_dpbf16_ps(c.v, (__m512bh)a.v, (__m512bh)b.v)};
#endif
}

/// 2 kLanes bfloat16 in their order, neighbours in a lane; subnormals become zero.
FLASHTILE_INLINE Vu round_neighbours(Vf first, Vf second) {
  __m512i halves;
#if defined(__clang__) && __clang_major__ < 18
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(halves) : "v"(second.v), "v"(first.v));
#else
  const __m512bh rounded = _mm512_cvtne2ps_pbh(second.v, first.v);
  __builtin_memcpy(&halves, &rounded, sizeof(halves));
#endif
  return {halves};
}

FLASHTILE_INLINE void store_flush(Bf16* p, Vf x) {
  const __m256bh y = _mm512_cvtneps_pbh(x.v);
  __builtin_memcpy(p, &y, sizeof(y));
}
#endif

/// One pair a lane; subnormals become zero.
FLASHTILE_INLINE Vu round_to_pairs(Vf low, Vf high) {
  const Vu words = iota_u() + ((iota_u() + broadcast_u(kLanes)) << 16);
  return {_mm512_permutexvar_epi16(words.v, round_neighbours(low, high).v)};
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
