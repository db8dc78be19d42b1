// SPDX-License-Identifier: Apache-2.0
#pragma once

// Elementary functions over Vf, written once for all instruction sets; included by simd.hpp.
// NaN gives NaN everywhere. Coefficients are minimax fits (Remez) of our own; the bounds in the
// comments are relative, of the polynomial alone, and rounding adds about 1e-7.

namespace flashtile::cpu::FLASHTILE_ISA {

inline constexpr float kLog2e = 1.44269504088896341f;
inline constexpr float kLn2 = 0.69314718055994531f;

/// 2^x, exactly 1 for x = 0; 0 below about 2^-125.5 (results near and below the smallest normal
/// number may be flushed), inf from 2^128 on.
FLASHTILE_INLINE Vf exp2(Vf x) {
  // Beyond these the answer is 0 or inf anyway; max and min let a NaN in their second place pass.
  const Vf y = min(broadcast(128.5f), max(broadcast(-126.0f), x));
  const Vf n = round_nearest(y);
  const Vf r = y - n;                   // exact, in [-0.5, 0.5]
  Vf p = broadcast(1.55946781619e-4f);  // 2.6e-9
  p = fma(p, r, broadcast(1.34066439024e-3f));
  p = fma(p, r, broadcast(9.61769297299e-3f));
  p = fma(p, r, broadcast(5.55031055101e-2f));
  p = fma(p, r, broadcast(2.40226527829e-1f));
  p = fma(p, r, broadcast(6.93147214968e-1f));
  p = fma(p, r, broadcast(1.0f));
  const Vf result = scale_pow2(p, n);
  return select(x <= broadcast(-126.0f), zero(), result);
}

/// As exp2, with a relative error below 4e-6: enough where the result is rounded to 16 bits.
FLASHTILE_INLINE Vf exp2_fast(Vf x) {
  const Vf y = min(broadcast(128.5f), max(broadcast(-126.0f), x));
  const Vf n = round_nearest(y);
  const Vf r = y - n;
  Vf p = broadcast(9.78291263812e-3f);  // 3.6e-6
  p = fma(p, r, broadcast(5.59768836305e-2f));
  p = fma(p, r, broadcast(2.40207110766e-1f));
  p = fma(p, r, broadcast(6.93113604403e-1f));
  p = fma(p, r, broadcast(1.0f));
  const Vf result = scale_pow2(p, n);
  return select(x <= broadcast(-126.0f), zero(), result);
}

/// e^x, exactly 1 for x = 0; 0 below about -87.3, inf above about 88.7.
FLASHTILE_INLINE Vf exp(Vf x) {
  const Vf y = min(broadcast(89.0f), max(broadcast(-87.336f), x));
  const Vf n = round_nearest(y * broadcast(kLog2e));
  // ln 2 in two parts; n times the first, ten bits long, is exact even without a fused multiply.
  const Vf r = fnma(n, broadcast(-2.12194440054690583e-4f), fnma(n, broadcast(0.693359375f), y));
  Vf p = broadcast(1.38146198882e-3f);  // 3.1e-9
  p = fma(p, r, broadcast(8.36870995398e-3f));
  p = fma(p, r, broadcast(4.16683872845e-2f));
  p = fma(p, r, broadcast(1.66665206888e-1f));
  p = fma(p, r, broadcast(4.99999934519e-1f));
  p = fma(p * r, r, r) + broadcast(1.0f);
  const Vf result = scale_pow2(p, n);
  return select(x < broadcast(-87.336f), zero(), result);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
