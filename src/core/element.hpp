// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/float16.hpp"
#include "core/float8.hpp"
#include "flashtile/dtype.hpp"

namespace flashtile {

/// The floating element at an address, or one of i8, as a double.
inline double load_float(const char* address, DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return *reinterpret_cast<const double*>(address);
    case DType::kF32:
      return *reinterpret_cast<const float*>(address);
    case DType::kF16:
      return f16_to_float(*reinterpret_cast<const uint16_t*>(address));
    case DType::kBF16:
      return bf16_to_float(*reinterpret_cast<const uint16_t*>(address));
    case DType::kI8:
      return *reinterpret_cast<const int8_t*>(address);
    case DType::kE4M3:
      return e4m3_to_float(*reinterpret_cast<const uint8_t*>(address));
    default:
      return 0;
  }
}

/// A double as a float that rounds on to 16 bits as the double itself would: rounded to odd.
inline float narrow_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (!(std::fabs(value) < 3e38) || static_cast<double>(nearest) == value) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

/// Writes a double, rounded once to the dtype (to nearest, ties to even); i8 and e4m3 saturate, and
/// NaN is 0 in i8.
inline void store_float(char* address, DType dtype, double value) {
  switch (dtype) {
    case DType::kF64:
      *reinterpret_cast<double*>(address) = value;
      break;
    case DType::kF32:
      *reinterpret_cast<float*>(address) = static_cast<float>(value);
      break;
    case DType::kF16:
      *reinterpret_cast<uint16_t*>(address) = float_to_f16(narrow_to_odd(value));
      break;
    case DType::kBF16:
      *reinterpret_cast<uint16_t*>(address) = float_to_bf16(narrow_to_odd(value));
      break;
    case DType::kI8:
      *reinterpret_cast<int8_t*>(address) =
          std::isnan(value) ? int8_t{0}
                            : static_cast<int8_t>(std::nearbyint(std::clamp(value, -128.0, 127.0)));
      break;
    case DType::kE4M3:
      *reinterpret_cast<uint8_t*>(address) = double_to_e4m3(value);
      break;
    default:
      break;
  }
}

}  // namespace flashtile
