// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

/// 8-bit floats e4m3 (OFP8, bias 7, no infinities, NaN is 7f and ff) as bits.
namespace flashtile {

constexpr float e4m3_to_float(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80) << 24;
  const uint32_t size = bits & 0x7f;
  if (size == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  // Exponent and mantissa at the place of float32's, the exponent 120 larger. Kernels take
  // subnormal numbers of float32 for zero, so those of 8 bits must not pass through them.
  const uint32_t value = size < 8 ? std::bit_cast<uint32_t>(static_cast<float>(size) * 0x1p-9f)
                                  : (size << 20) + (120u << 23);
  return std::bit_cast<float>(value | sign);
}

/// The nearest, ties to even; beyond 448 the largest one. NaN stays NaN.
inline uint8_t double_to_e4m3(double value) {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7f);
  const double size = std::fabs(value);
  if (size >= 448) return static_cast<uint8_t>(sign | 0x7e);
  // Neighbours are 2^(exponent - 3) apart, below 2^-6 as at 2^-6.
  const int exponent = size < 0x1p-6 ? -6 : std::ilogb(size);
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(size, 3 - exponent)));
  // 8 steps of the smallest exponent are the first normal number, and 16 steps the next exponent.
  return static_cast<uint8_t>(sign | (((exponent + 6) << 3) + steps));
}

}  // namespace flashtile
