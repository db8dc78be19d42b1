// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "flashtile/export.hpp"

namespace flashtile {

/// Element types. The numbers are those of the C ABI (`flashtile_dtype`) and never change.
enum class DType : int32_t {
  kNone = 0,  ///< no tensor
  kF32 = 1,
  kF16 = 2,
  kBF16 = 3,
  kF64 = 4,
  kI32 = 5,
  kI64 = 6,
  kU8 = 7,
  kBool = 8,
  kI8 = 9,     ///< of quantised caches
  kE4M3 = 10,  ///< of quantised caches: 8-bit floats up to 448, without infinities
  kE5M2 = 11,  ///< reserved
};

/// Bytes of one element; 0 for kNone.
FLASHTILE_API int64_t dtype_bytes(DType dtype);

/// "f32", "bf16", ...; "none" for kNone.
FLASHTILE_API std::string_view dtype_name(DType dtype);

/// The dtype with that name; kNone when there is none.
FLASHTILE_API DType dtype_from_name(std::string_view name);

/// True for f64, f32, f16 and bf16.
FLASHTILE_API bool is_floating(DType dtype);

}  // namespace flashtile
