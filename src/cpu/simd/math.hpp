// SPDX-License-Identifier: Apache-2.0
#pragma once

// Elementary functions over Vf, written once for all instruction sets; included by simd.hpp.
// NaN gives NaN everywhere. Coefficients are minimax fits (Remez) of our own; the bounds in the
// comments are relative, of the polynomial alone, and rounding adds about 1e-7.

namespace flashtile::cpu::FLASHTILE_ISA {

inline constexpr float kLog2e = 1.44269504088896341f;

// ln 2 in two parts; a whole number of at most 14 bits times the first is exact, even without a
// fused multiply-add.
inline constexpr float kLn2High = 0.693359375f;
inline constexpr float kLn2Low = -2.12194440054690583e-4f;

/// Where 2^x is 0 or inf anyway x may be another such number; max and min let a NaN in their second
/// place pass.
FLASHTILE_INLINE NearestParts<Vf> power_parts(Vf x) {
  if constexpr (kScalesAnyPower) return nearest_parts(x);
  return nearest_parts(min(broadcast(128.5f), max(broadcast(kZeroPower), x)));
}

/// 2^x, exactly 1 for x = 0 and 0 for -inf, inf from 2^128 on. Results below 2^-125 may be flushed
/// to zero.
FLASHTILE_INLINE Vf exp2(Vf x) {
  const auto [n, r] = power_parts(x);
  Vf p = broadcast(1.55946781619e-4f);  // 2.6e-9
  p = fma(p, r, broadcast(1.34066439024e-3f));
  p = fma(p, r, broadcast(9.61769297299e-3f));
  p = fma(p, r, broadcast(5.55031055101e-2f));
  p = fma(p, r, broadcast(2.40226527829e-1f));
  p = fma(p, r, broadcast(6.93147214968e-1f));
  p = fma(p, r, broadcast(1.0f));
  return scale_pow2(p, n);
}

/// As exp2, with a relative error below 4e-6: enough where the result is rounded to 16 bits.
FLASHTILE_INLINE Vf exp2_fast(Vf x) {
  const auto [n, r] = power_parts(x);
  Vf p = broadcast(9.78291263812e-3f);  // 3.6e-6
  p = fma(p, r, broadcast(5.59768836305e-2f));
  p = fma(p, r, broadcast(2.40207110766e-1f));
  p = fma(p, r, broadcast(6.93113604403e-1f));
  p = fma(p, r, broadcast(1.0f));
  return scale_pow2(p, n);
}

/// e^x, with the same ends.
FLASHTILE_INLINE Vf exp(Vf x) {
  const Vf y = min(broadcast(89.0f), max(broadcast(kZeroPower * 0.693147f), x));
  const Vf n = round_nearest(y * broadcast(kLog2e));
  const Vf r = fnma(n, broadcast(kLn2Low), fnma(n, broadcast(kLn2High), y));
  Vf p = broadcast(1.38146198882e-3f);  // 3.1e-9
  p = fma(p, r, broadcast(8.36870995398e-3f));
  p = fma(p, r, broadcast(4.16683872845e-2f));
  p = fma(p, r, broadcast(1.66665206888e-1f));
  p = fma(p, r, broadcast(4.99999934519e-1f));
  p = fma(p * r, r, r) + broadcast(1.0f);
  return scale_pow2(p, n);
}

/// x = 2^exponent * (1 + fraction) with 1 + fraction in [sqrt(1/2), sqrt(2)), for finite x > 0.
struct LogParts {
  Vf exponent;
  Vf fraction;
};
FLASHTILE_INLINE LogParts split_for_log(Vf x) {
  const Mf subnormal = x < broadcast(0x1p-126f);
  const Vu u = as_vu(select(subnormal, x * broadcast(0x1p23f), x));
  constexpr uint32_t kSqrtHalf = 0x3F3504F3;  // its bits
  const Vu shifted = u + broadcast_u(0x3F800000 - kSqrtHalf);
  const Vf e = i32_to_float(shifted >> 23) - broadcast(127.0f);
  const Vf m = as_vf((shifted & broadcast_u(0x007FFFFF)) + broadcast_u(kSqrtHalf));
  return {select(subnormal, e - broadcast(23.0f), e), m - broadcast(1.0f)};
}
/// log(1 + f) - f for f in [sqrt(1/2) - 1, sqrt(2) - 1].
FLASHTILE_INLINE Vf log1p_minus_f(Vf f) {
  Vf p = broadcast(-7.63449469522e-2f);  // 5.8e-9
  p = fma(p, f, broadcast(1.2761575403e-1f));
  p = fma(p, f, broadcast(-1.31601820837e-1f));
  p = fma(p, f, broadcast(1.42017582407e-1f));
  p = fma(p, f, broadcast(-1.66233574119e-1f));
  p = fma(p, f, broadcast(2.0001226866e-1f));
  p = fma(p, f, broadcast(-2.50008210318e-1f));
  p = fma(p, f, broadcast(3.33333317079e-1f));
  const Vf f2 = f * f;
  return fma(f2 * f, p, f2 * broadcast(-0.5f));
}
/// The values of a logarithm where it has no finite one.
FLASHTILE_INLINE Vf log_special(Vf x, Vf result) {
  const Vf inf = broadcast(__builtin_inff());
  result = select(x == inf, inf, result);
  result = select(x == zero(), -inf, result);
  return select(x >= zero(), result, broadcast(__builtin_nanf("")));
}

/// Natural logarithm; -inf for 0, NaN below it.
FLASHTILE_INLINE Vf log(Vf x) {
  const LogParts parts = split_for_log(x);
  const Vf low = fma(parts.exponent, broadcast(kLn2Low), log1p_minus_f(parts.fraction));
  return log_special(x, fma(parts.exponent, broadcast(kLn2High), parts.fraction + low));
}

/// Logarithm to base 2, exact for powers of two; -inf for 0, NaN below it.
FLASHTILE_INLINE Vf log2(Vf x) {
  const LogParts parts = split_for_log(x);
  const Vf natural = parts.fraction + log1p_minus_f(parts.fraction);
  return log_special(x, fma(natural, broadcast(kLog2e), parts.exponent));
}

/// Hyperbolic tangent.
FLASHTILE_INLINE Vf tanh(Vf x) {
  const Vf size = abs(x);
  const Vf z = x * x;
  Vf p = broadcast(-5.58864550017e-3f);  // 5.7e-9 up to 0.64
  p = fma(p, z, broadcast(2.0536683688e-2f));
  p = fma(p, z, broadcast(-5.37090016491e-2f));
  p = fma(p, z, broadcast(1.33310844348e-1f));
  p = fma(p, z, broadcast(-3.33332692329e-1f));
  const Vf near = fma(p * z, x, x);
  const Vf e = exp(size + size);
  const Vf far = broadcast(1.0f) - broadcast(2.0f) / (e + broadcast(1.0f));
  return select(size < broadcast(0.625f), near, select(x < zero(), -far, far));
}

/// 1 / (1 + e^-x).
FLASHTILE_INLINE Vf sigmoid(Vf x) {
  const Vf e = exp(-abs(x));
  return select(x >= zero(), broadcast(1.0f), e) / (broadcast(1.0f) + e);
}

/// log(1 + e^x), exact where e^x is small.
FLASHTILE_INLINE Vf softplus(Vf x) {
  const Vf e = exp(-abs(x));
  const Vf sum = broadcast(1.0f) + e;
  // What the sum lost of e is a factor of its logarithm.
  const Vf lost = sum - broadcast(1.0f);
  const Vf log1p = select(lost == zero(), e, log(sum) * (e / lost));
  return select(x > zero(), x, zero()) + log1p;
}

/// x sigmoid(x), and its derivative.
FLASHTILE_INLINE Vf silu(Vf x) { return x * sigmoid(x); }
FLASHTILE_INLINE Vf silu_slope(Vf x) {
  const Vf s = sigmoid(x);
  return s * fma(x, broadcast(1.0f) - s, broadcast(1.0f));
}

/// Natural logarithm of one number, by the C library.
FLASHTILE_INLINE float log_scalar(float x) { return __builtin_logf(x); }

}  // namespace flashtile::cpu::FLASHTILE_ISA
