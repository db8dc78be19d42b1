// SPDX-License-Identifier: Apache-2.0
#pragma once

// Functions on strips of floats, in plain code that compilers turn into vector code: no branch, no
// call inside a loop. Every file of an instruction set has its own copy, so nothing here may become
// a symbol that such files share: no functions of the standard library.
//
// Errors are at most 2 units in the last place (the tests measure them), infinities and NaN are as
// in <cmath>, subnormal results are kept. Polynomials were fitted by Remez's exchange.

#include <cstdint>

namespace flashtile::cpu::FLASHTILE_ISA {

inline constexpr int kStrip = 64;  ///< lanes of a strip

/// 2^k for -126 <= k <= 127.
inline float strip_power_of_two(int32_t k) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(k + 127) << 23);
}

inline float strip_exp(float x) {
  x = x < -104.0f ? -104.0f : x;  // 2^-150 and less is 0; NaN passes
  x = x > 89.0f ? 89.0f : x;
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504f + kMagic;
  const float n = shifted - kMagic;
  const int32_t k = static_cast<int32_t>(__builtin_bit_cast(uint32_t, shifted) -
                                         __builtin_bit_cast(uint32_t, kMagic));
  const float r = (x - n * 0.693145751953125f) - n * 1.428606765330187e-06f;
  float q = 0.0013814462581649423f;
  q = q * r + 0.008368780836462975f;
  q = q * r + 0.04166839271783829f;
  q = q * r + 0.1666651964187622f;
  q = q * r + 0.4999999403953552f;
  const float p = (r * r * q + r) + 1.0f;
  const int32_t half = k >> 1;  // in two steps, because 2^k may not be a float
  return p * strip_power_of_two(half) * strip_power_of_two(k - half);
}

/// x as m * 2^e with m in [sqrt(1/2), sqrt(2)): log(m) and e.
inline void strip_log_parts(float x, float* log_m, float* exponent) {
  const bool is_tiny = x < 0x1p-126f;
  const float y = is_tiny ? x * 0x1p23f : x;
  const uint32_t bits = __builtin_bit_cast(uint32_t, y);
  const int32_t e = static_cast<int32_t>(bits - 0x3f3504f3u) >> 23;
  const float m = __builtin_bit_cast(float, bits - (static_cast<uint32_t>(e) << 23));
  const float f = m - 1.0f;
  float p = -0.07634197920560837f;
  p = p * f + 0.1276138722896576f;
  p = p * f - 0.13160204887390137f;
  p = p * f + 0.14201787114143372f;
  p = p * f - 0.1662335842847824f;
  p = p * f + 0.20001225173473358f;
  p = p * f - 0.2500081956386566f;
  p = p * f + 0.3333333134651184f;
  const float square = f * f;
  *log_m = f + (f * square * p - 0.5f * square);
  *exponent = static_cast<float>(e) - (is_tiny ? 23.0f : 0.0f);
}

/// What a logarithm gives outside the positive numbers, or `value`.
inline float strip_log_special(float x, float value) {
  value = x == __builtin_inff() ? x : value;
  value = x == 0.0f ? -__builtin_inff() : value;
  value = x < 0.0f ? __builtin_nanf("") : value;
  return x == x ? value : x;
}

inline float strip_log(float x) {
  float log_m = 0;
  float e = 0;
  strip_log_parts(x, &log_m, &e);
  const float low = e * 1.428606765330187e-06f + log_m;
  return strip_log_special(x, e * 0.693145751953125f + low);
}

inline float strip_log2(float x) {
  float log_m = 0;
  float e = 0;
  strip_log_parts(x, &log_m, &e);
  return strip_log_special(x, e + log_m * 1.44269504f);
}

inline float strip_tanh(float x) {
  const float size = __builtin_fabsf(x);
  const float z = x * x;
  float p = -0.005704977549612522f;
  p = p * z + 0.020639078691601753f;
  p = p * z - 0.05373971164226532f;
  p = p * z + 0.13331441581249237f;
  p = p * z - 0.3333328068256378f;
  const float near_zero = x + x * z * p;
  const float far = 1.0f - 2.0f / (strip_exp(2.0f * size) + 1.0f);
  return size < 0.625f ? near_zero : __builtin_copysignf(far, x);
}

inline float strip_sigmoid(float x) {
  const float e = strip_exp(-__builtin_fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/// sin(x + quarters * pi / 2), for |x| <= 1e5.
inline float strip_wave(float x, int32_t quarters) {
  // The distance from the nearest multiple of pi / 2, in double: it may be tiny.
  constexpr double kMagic = 0x1.8p52;
  const auto wide = static_cast<double>(x);
  const double shifted = wide * 0.63661977236758134 + kMagic;
  const double n = shifted - kMagic;
  const double distance = (wide - n * 1.5707963267341256) - n * 6.077100506506192e-11;
  const auto quadrant =
      static_cast<uint32_t>(static_cast<uint64_t>(__builtin_bit_cast(int64_t, shifted) + quarters));
  const auto r = static_cast<float>(distance);
  const float z = r * r;
  float s = 2.7181215500604594e-06f;
  s = s * z - 0.00019839312881231308f;
  s = s * z + 0.008333329111337662f;
  s = s * z - 0.1666666716337204f;
  const float sine = r + r * z * s;
  float c = 2.44331567955969e-05f;
  c = c * z - 0.0013887316454201937f;
  c = c * z + 0.04166664555668831f;
  const float cosine = (1.0f - 0.5f * z) + z * z * c;
  const float value = (quadrant & 1u) != 0 ? cosine : sine;
  return (quadrant & 2u) != 0 ? -value : value;
}

template <int N, bool kCosine>
inline void strip_sin_cos(const float* __restrict x, float* __restrict out) {
  constexpr float kLimit = 1e5f;
  int num_far = 0;  // NaN too
  for (int i = 0; i < N; ++i) num_far += __builtin_fabsf(x[i]) <= kLimit ? 0 : 1;
  for (int i = 0; i < N; ++i) {
    out[i] = strip_wave(__builtin_fabsf(x[i]) <= kLimit ? x[i] : 0.0f, kCosine ? 1 : 0);
  }
  if (num_far == 0) return;
  for (int i = 0; i < N; ++i) {
    if (__builtin_fabsf(x[i]) <= kLimit) continue;
    const auto wide = static_cast<double>(x[i]);
    out[i] = static_cast<float>(kCosine ? __builtin_cos(wide) : __builtin_sin(wide));
  }
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
