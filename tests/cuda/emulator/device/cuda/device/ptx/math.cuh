// SPDX-License-Identifier: Apache-2.0
//
// src/cuda/device/ptx/math.cuh for the emulated GPU. Approximate functions get an error of about
// the size that the real ones may have.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cuda/device/ptx/define.cuh"

namespace flashtile::device {

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

inline float float_from_bits(uint32 bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline uint32 bits_of_float(float value) {
  uint32 bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline int64 int64_from_double(double x) { return std::llrint(x); }
inline double power_of_two(int exponent) { return std::ldexp(1.0, exponent); }
inline float infinity() { return std::numeric_limits<float>::infinity(); }
inline float not_a_number() { return float_from_bits(0x7fffffffu); }
inline bool is_finite(float value) { return std::isfinite(value); }
inline int count_ones(uint32 bits) { return __builtin_popcount(bits); }
inline int leading_zeros(uint32 bits) { return bits == 0 ? 32 : __builtin_clz(bits); }
inline float multiply_rounded(float a, float b) { return a * b; }
inline float fused_multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
inline float absolute(float a) { return std::fabs(a); }
inline float larger(float a, float b) { return std::fmax(a, b); }
inline float larger_or_nan(float a, float b) {
  return std::isnan(a) || std::isnan(b) ? not_a_number() : std::fmax(a, b);
}
inline float smaller(float a, float b) { return std::fmin(a, b); }

/// Moves a result by about two units of the last place, up or down by its bits.
inline float approximate(double exact) {
  float value = static_cast<float>(exact);
  if (!std::isfinite(value) || value == 0) return value;
  // Subnormal results are flushed.
  if (std::fabs(value) < std::numeric_limits<float>::min()) return 0.0f;
  const uint32 bits = bits_of_float(value);
  const double shift = (bits >> 3) % 2 == 0 ? 1.0 : -1.0;
  return static_cast<float>(exact * (1.0 + shift * 1.2e-7));
}

inline float exp2_approx(float x) { return approximate(std::exp2(static_cast<double>(x))); }
inline float log2_approx(float x) { return approximate(std::log2(static_cast<double>(x))); }
inline float reciprocal_approx(float x) { return approximate(1.0 / static_cast<double>(x)); }
inline float sqrt_rounded(float x) { return std::sqrt(x); }
inline float round_down(float x) { return std::floor(x); }

inline int64 int64_from_float(float x) {
  if (std::isnan(x)) return 0;
  if (x >= 0x1p63f) return std::numeric_limits<int64>::max();
  if (x < -0x1p63f) return std::numeric_limits<int64>::min();
  return static_cast<int64>(x);
}

inline float exp_precise(float x) { return std::exp(x); }
inline float log_precise(float x) { return std::log(x); }
inline float log2_precise(float x) { return std::log2(x); }
inline float tanh_precise(float x) { return std::tanh(x); }
inline float sin_precise(float x) { return std::sin(x); }
inline float cos_precise(float x) { return std::cos(x); }
inline float pow_precise(float x, float y) { return std::pow(x, y); }
inline float remainder_of(float x, float y) { return std::fmod(x, y); }

inline uint32 multiply_high(uint32 a, uint32 b) {
  return static_cast<uint32>((static_cast<uint64>(a) * b) >> 32);
}
inline void multiply_wide(uint32 a, uint32 b, uint32& high, uint32& low) {
  high = multiply_high(a, b);
  low = a * b;
}

inline uint32 permute_bytes(uint32 a, uint32 b, uint32 selector) {
  const uint64 bytes = a | static_cast<uint64>(b) << 32;
  uint32 y = 0;
  for (int i = 0; i < 4; ++i) {
    y |= static_cast<uint32>(bytes >> (selector >> (4 * i) & 7) * 8 & 0xff) << (8 * i);
  }
  return y;
}

inline uint32 smaller_halves(uint32 a, uint32 b) {
  const uint32 low = (a & 0xffffu) < (b & 0xffffu) ? a : b;
  const uint32 high = a >> 16 < b >> 16 ? a : b;
  return (low & 0xffffu) | (high & 0xffff0000u);
}
inline uint32 spread_signs(uint32 halves) {
  return ((halves & 0x8000u) != 0 ? 0xffffu : 0u) | ((halves >> 31) != 0 ? 0xffff0000u : 0u);
}

}  // namespace flashtile::device
