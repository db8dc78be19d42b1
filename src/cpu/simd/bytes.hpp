// SPDX-License-Identifier: Apache-2.0
#pragma once

// Elements of one byte as floats, the same text for all instruction sets.

#include "cpu/simd/types.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

FLASHTILE_INLINE Vf i8_to_float(Vu x) {
  return i32_to_float((x ^ broadcast_u(0x80)) - broadcast_u(0x80));
}

/// Exponent and mantissa at the place of float32's, the exponent 120 larger; subnormal numbers as
/// multiples of 2^-9, since their bits there would be float32's own, which count as zero.
FLASHTILE_INLINE Vf e4m3_to_float(Vu x) {
  const Vu size = x & broadcast_u(0x7F);
  const Vu normal = (size << 20) + broadcast_u(120u << 23);
  const Vu subnormal = as_vu(i32_to_float(size) * broadcast(0x1p-9f));
  const Vu value = select(less_i32(size, broadcast_u(8)), subnormal, normal);
  const Vf number = as_vf(value | ((x & broadcast_u(0x80)) << 24));
  return select(size == broadcast_u(0x7F), broadcast(__builtin_nanf("")), number);
}

FLASHTILE_INLINE Vf load(const I8* p) {
  return i8_to_float(load_u8(reinterpret_cast<const uint8_t*>(p)));
}
FLASHTILE_INLINE Vf load_partial(const I8* p, int64_t count) {
  return i8_to_float(load_u8_partial(reinterpret_cast<const uint8_t*>(p), count));
}
FLASHTILE_INLINE Vf load(const E4m3* p) { return e4m3_to_float(load_u8(&p->bits)); }
FLASHTILE_INLINE Vf load_partial(const E4m3* p, int64_t count) {
  return e4m3_to_float(load_u8_partial(&p->bits, count));
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
