// SPDX-License-Identifier: Apache-2.0
//
// Floating-point arithmetic by instruction. Names of approximate ones say so; their errors are
// those of the PTX manual, for inputs that are not subnormal.
#pragma once

#include "cuda/device/ptx/define.cuh"

namespace flashtile::device {

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

FLASHTILE_DEVICE float float_from_bits(uint32 bits) { return __uint_as_float(bits); }
FLASHTILE_DEVICE uint32 bits_of_float(float value) { return __float_as_uint(value); }
FLASHTILE_DEVICE float infinity() { return float_from_bits(0x7f800000u); }
FLASHTILE_DEVICE float not_a_number() { return float_from_bits(0x7fffffffu); }
FLASHTILE_DEVICE bool is_finite(float value) {
  return (bits_of_float(value) & 0x7f800000u) != 0x7f800000u;
}

FLASHTILE_DEVICE int count_ones(uint32 bits) { return __popc(bits); }
/// Of 32 bits; 32 where all are 0.
FLASHTILE_DEVICE int leading_zeros(uint32 bits) { return __clz(static_cast<int>(bits)); }

/// a * b, never part of a fused operation.
FLASHTILE_DEVICE float multiply_rounded(float a, float b) { return __fmul_rn(a, b); }
/// a * b + c, rounded once.
FLASHTILE_DEVICE float fused_multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
FLASHTILE_DEVICE float absolute(float a) { return fabsf(a); }

/// The larger one; the other one where one is NaN.
FLASHTILE_DEVICE float larger(float a, float b) { return fmaxf(a, b); }
/// The larger one; NaN where one is.
FLASHTILE_DEVICE float larger_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
FLASHTILE_DEVICE float smaller(float a, float b) { return fminf(a, b); }

/// 2^x; relative error at most 2^-22.
FLASHTILE_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// log2(x); absolute error at most 2^-22 for x in [0.5, 2], else relative error 2^-22.
FLASHTILE_DEVICE float log2_approx(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x; relative error at most 2^-23.
FLASHTILE_DEVICE float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

FLASHTILE_DEVICE float sqrt_rounded(float x) {
  float y;
  asm("sqrt.rn.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

FLASHTILE_DEVICE float round_down(float x) {
  float y;
  asm("cvt.rmi.f32.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Towards zero; saturates, and NaN gives 0.
FLASHTILE_DEVICE int64 int64_from_float(float x) {
  int64 y;
  asm("cvt.rzi.s64.f32 %0, %1;" : "=l"(y) : "f"(x));
  return x == x ? y : 0;
}

/// To the nearest; for |x| below 2^62.
FLASHTILE_DEVICE int64 int64_from_double(double x) { return __double2ll_rn(x); }
/// 2^exponent, of the normal numbers.
FLASHTILE_DEVICE double power_of_two(int exponent) {
  return __longlong_as_double(static_cast<int64>(exponent + 1023) << 52);
}

// To the last bits, for user expressions and for float32 problems.
FLASHTILE_DEVICE float exp_precise(float x) { return expf(x); }
FLASHTILE_DEVICE float log_precise(float x) { return logf(x); }
FLASHTILE_DEVICE float log2_precise(float x) { return log2f(x); }
FLASHTILE_DEVICE float tanh_precise(float x) { return tanhf(x); }
FLASHTILE_DEVICE float sin_precise(float x) { return sinf(x); }
FLASHTILE_DEVICE float cos_precise(float x) { return cosf(x); }
FLASHTILE_DEVICE float pow_precise(float x, float y) { return powf(x, y); }
FLASHTILE_DEVICE float remainder_of(float x, float y) { return fmodf(x, y); }

/// The high 32 bits of the product.
FLASHTILE_DEVICE uint32 multiply_high(uint32 a, uint32 b) { return __umulhi(a, b); }

/// Both halves of the product, by one instruction.
FLASHTILE_DEVICE void multiply_wide(uint32 a, uint32 b, uint32& high, uint32& low) {
  asm("{\n .reg .u64 product;\n mul.wide.u32 product, %2, %3;\n mov.b64 {%1, %0}, product;\n}"
      : "=r"(high), "=r"(low)
      : "r"(a), "r"(b));
}

/// Byte i is that of a (0 to 3) or b (4 to 7) which digit i of the selector names.
FLASHTILE_DEVICE uint32 permute_bytes(uint32 a, uint32 b, uint32 selector) {
  return __byte_perm(a, b, selector);
}

/// The smaller one of both, for each half; for sm_90.
FLASHTILE_DEVICE uint32 smaller_halves(uint32 a, uint32 b) {
  uint32 y;
  asm("min.u16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}

/// All bits of each half as its highest one.
FLASHTILE_DEVICE uint32 spread_signs(uint32 halves) {
  uint32 y;
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(y) : "r"(halves));
  return y;
}

}  // namespace flashtile::device
