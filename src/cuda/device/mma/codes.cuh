// SPDX-License-Identifier: Apache-2.0
//
// Codes of 8 bits (i8, e4m3) as elements: every code is exact in f16 and in bf16.
#pragma once

#include "cuda/device/ptx/convert.cuh"

namespace flashtile::device {

/// The way of f16: e4m3 one place lower, where it is 2^-8 of itself. NaN has the place of 480.
FLASHTILE_DEVICE uint32 f16_of_e4m3_bits(uint32 high_bytes) {
  constexpr uint32 kBeyond = 0x78607860;  // 480 / 2^8 times this overflows, 448 / 2^8 does not
  constexpr uint32 kTwoTo8 = 0x5c005c00;
  const uint32 small = (high_bytes & 0x80008000u) | ((high_bytes & 0x7f007f00u) >> 1);
  const uint32 probe = fused_multiply_add_pair<Element::kF16>(small, kBeyond, 0u);
  const uint32 zero_or_nan = fused_multiply_add_pair<Element::kF16>(probe, 0u, 0u);
  return fused_multiply_add_pair<Element::kF16>(small, kTwoTo8, zero_or_nan);
}

/// Four codes as two pairs of elements: codes 0, 1 and 2, 3, or with kAlternates 0, 2 and 1, 3.
template <Element element, Element code, bool kAlternates>
FLASHTILE_DEVICE void widen(uint32 codes, uint32 (&pairs)[2]) {
  // Two codes, each in the low byte of a half or in the high one, beside bytes of another word.
  constexpr uint32 kLow[2] = {kAlternates ? 0x4240u : 0x4140u, kAlternates ? 0x4341u : 0x4342u};
  constexpr uint32 kHigh[2] = {kAlternates ? 0x2404u : 0x1404u, kAlternates ? 0x3414u : 0x3424u};
  FLASHTILE_UNROLL
  for (int i = 0; i < 2; ++i) {
    if constexpr (code == Element::kI8 && element == Element::kF16) {
      // 1024 + 128 + code, whatever its sign.
      const uint32 lifted = permute_bytes(codes ^ 0x80808080u, 0x64646464u, kLow[i]);
      pairs[i] = fused_multiply_add_pair<element>(lifted, 0x3c003c00u, 0xe480e480u);
    } else if constexpr (code == Element::kI8) {
      // 128 + the low bits, less 128, or 256 where the code is negative.
      const uint32 lifted = permute_bytes(codes, 0x43434343u, kLow[i]);
      pairs[i] =
          fused_multiply_add_pair<element>(lifted & 0xff80ff80u, 0xbf80bf80u, lifted & 0xff7fff7fu);
    } else {
      uint32 wide;
      if constexpr (kHasE4m3) {
        const uint32 order = kAlternates ? permute_bytes(codes, 0u, 0x3120u) : codes;
        wide = f16_pair_of_e4m3(static_cast<uint16>(i == 0 ? order : order >> 16));
      } else {
        wide = f16_of_e4m3_bits(permute_bytes(codes, 0u, kHigh[i]));
      }
      if constexpr (element == Element::kF16) {
        pairs[i] = wide;
      } else {
        float low, high;
        unpack<Element::kF16>(wide, low, high);
        pairs[i] = pack<element>(low, high);
      }
    }
  }
}

/// Four codes as floats.
template <Element code>
FLASHTILE_DEVICE void widen(uint32 codes, float (&values)[4]) {
  uint32 pairs[2];
  widen<Element::kF16, code, false>(codes, pairs);
  unpack<Element::kF16>(pairs[0], values[0], values[1]);
  unpack<Element::kF16>(pairs[1], values[2], values[3]);
}

/// A float as an element holds it.
template <Element element>
FLASHTILE_DEVICE float rounded(float value) {
  if constexpr (element == Element::kF32) {
    return value;
  } else {
    float low, high;
    unpack<element>(pack<element>(value, 0.0f), low, high);
    return low;
  }
}

/// Writes value / scale, rounded once to the nearest code, ties to even; what is larger than the
/// largest becomes that. NaN stays NaN, or is 0 in i8.
template <Element code>
FLASHTILE_DEVICE void store_code(char* address, float value, float scale) {
  const double quotient = static_cast<double>(value) / static_cast<double>(scale);
  const double size = quotient < 0 ? -quotient : quotient;
  const bool is_number = quotient == quotient;
  uint32 bits;
  if constexpr (code == Element::kI8) {
    const double limited = quotient < -128 ? -128.0 : quotient > 127 ? 127.0 : quotient;
    bits = is_number ? static_cast<uint32>(int64_from_double(limited)) : 0u;
  } else {
    // Neighbours are 2^(exponent - 3) apart, below 2^-6 as at 2^-6; 16 steps are the next exponent.
    const uint32 as_float = bits_of_float(static_cast<float>(size));
    const int exponent = size < 0x1p-6 ? -6 : static_cast<int>(as_float >> 23) - 127;
    const int64 steps = size < 448 ? int64_from_double(size * power_of_two(3 - exponent)) : 0;
    const uint32 size_bits = size < 448 ? static_cast<uint32>((exponent + 6) * 8 + steps) : 0x7eu;
    const uint32 sign = bits_of_float(static_cast<float>(quotient)) >> 24 & 0x80u;
    bits = sign | (is_number ? size_bits : 0x7fu);
  }
  *reinterpret_cast<unsigned char*>(address) = static_cast<unsigned char>(bits);
}

/// The code in the lowest byte as a float.
template <Element code>
FLASHTILE_DEVICE float float_of_code(uint32 byte) {
  float values[4];
  widen<code>(byte, values);
  return values[0];
}

}  // namespace flashtile::device
