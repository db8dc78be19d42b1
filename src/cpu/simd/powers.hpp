// SPDX-License-Identifier: Apache-2.0
#pragma once

// Powers of two by the bits of the exponent, for instruction sets that have nothing for them; their
// files include this one.

#include "cpu/simd/types.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Whether nearest_parts and scale_pow2 take any x, infinite ones too.
inline constexpr bool kScalesAnyPower = false;
FLASHTILE_INLINE NearestParts<Vf> nearest_parts(Vf x) {
  const Vf whole = round_nearest(x);
  return {whole, x - whole};
}

/// x * 2^n for a whole number n in [kZeroPower, 128]; 2^kZeroPower counts as zero.
inline constexpr float kZeroPower = -126.0f;
FLASHTILE_INLINE Vf scale_pow2(Vf x, Vf n) {
  // 2^128 has no float, so half of the power, then twice that. The large number leaves n + 126 in
  // the low bits of the sum.
  const Vu exponent = as_vu(n + broadcast(0x1.8p23f + 126.0f)) << 23;
  return x * as_vf(exponent) * broadcast(2.0f);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
