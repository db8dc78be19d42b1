// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

/// 16-bit floats as bits: to float32 exactly, and back to the nearest, ties to even. NaN stays NaN.
namespace flashtile {

constexpr float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

constexpr uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign_free = bits & 0x7fffffff;
  if (sign_free > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);  // a quiet NaN
  // A carry out of the mantissa is the right exponent, up to infinity.
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

constexpr float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in float32
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  const uint32_t wide_exponent = exponent == 31 ? 255 : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide_exponent << 23 | mantissa << 13);
}

constexpr uint16_t float_to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t sign_free = bits & 0x7fffffff;
  if (sign_free > 0x7f800000) {
    return static_cast<uint16_t>(sign | 0x7e00 | (sign_free >> 13 & 0x3ff));  // a quiet NaN
  }
  if (sign_free >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and up
  if (sign_free < 0x38800000) {  // below 2^-14: the nearest multiple of 2^-24
    if (sign_free < 0x33000000) return static_cast<uint16_t>(sign);  // below 2^-25
    const uint32_t shift = 126 - (sign_free >> 23);                  // 14 .. 24
    const uint32_t mantissa = (sign_free & 0x7fffff) | 0x800000;
    const uint32_t half = 1u << (shift - 1);
    const uint32_t rounded = (mantissa + half - 1 + (mantissa >> shift & 1)) >> shift;
    return static_cast<uint16_t>(sign | rounded);
  }
  const uint32_t rounded = sign_free + 0xfff + (sign_free >> 13 & 1);
  return static_cast<uint16_t>(sign | (rounded - ((127u - 15u) << 23)) >> 13);
}

}  // namespace flashtile
