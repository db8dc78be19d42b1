// SPDX-License-Identifier: Apache-2.0
#pragma once

// Portable: four floats in the compilers' generic vector type, which becomes whatever the baseline
// of the machine has (SSE2, NEON, or plain scalar code). No fused multiply-add, no intrinsics.

#include "cpu/simd/types.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

inline constexpr int kLanes = 4;
// Rows of a GEMM tile that is 1, 2, ... vectors wide: what the registers hold.
inline constexpr int kTileVecs = 2;
inline constexpr int kTileRows[kTileVecs] = {8, 6};
inline constexpr bool kHasBf16Dot = false;
inline constexpr bool kHasTiles = false;

using FloatLanes = float __attribute__((vector_size(16)));
using UintLanes = uint32_t __attribute__((vector_size(16)));
using IntLanes = int32_t __attribute__((vector_size(16)));

struct Vf {
  FloatLanes v;
};
struct Vu {
  UintLanes v;
};
struct Mf {
  IntLanes m;  ///< 0 or -1
};

FLASHTILE_INLINE int clamp_count(int64_t count) {
  return count >= kLanes ? kLanes : count <= 0 ? 0 : static_cast<int>(count);
}

// ---- masks ----

FLASHTILE_INLINE Mf first_lanes(int64_t count) {
  const int32_t n = clamp_count(count);
  return {IntLanes{0, 1, 2, 3} < IntLanes{n, n, n, n}};
}
FLASHTILE_INLINE Mf operator&(Mf a, Mf b) { return {a.m & b.m}; }
FLASHTILE_INLINE Mf operator|(Mf a, Mf b) { return {a.m | b.m}; }
FLASHTILE_INLINE Mf operator^(Mf a, Mf b) { return {a.m ^ b.m}; }
FLASHTILE_INLINE Mf operator~(Mf a) { return {~a.m}; }
FLASHTILE_INLINE uint32_t bits(Mf a) {
  return static_cast<uint32_t>((a.m[0] & 1) | (a.m[1] & 2) | (a.m[2] & 4) | (a.m[3] & 8));
}
FLASHTILE_INLINE bool any(Mf a) { return bits(a) != 0; }
FLASHTILE_INLINE bool all(Mf a) { return bits(a) == 15; }

// ---- floats ----

FLASHTILE_INLINE Vf zero() { return {FloatLanes{0, 0, 0, 0}}; }
FLASHTILE_INLINE Vf broadcast(float x) { return {FloatLanes{x, x, x, x}}; }
FLASHTILE_INLINE Vf load(const float* p) {
  Vf x;
  __builtin_memcpy(&x.v, p, 16);
  return x;
}
FLASHTILE_INLINE void store(float* p, Vf x) { __builtin_memcpy(p, &x.v, 16); }
FLASHTILE_INLINE Vf load_partial(const float* p, int64_t count) {
  const int n = clamp_count(count);
  return {FloatLanes{n > 0 ? p[0] : 0, n > 1 ? p[1] : 0, n > 2 ? p[2] : 0, n > 3 ? p[3] : 0}};
}
FLASHTILE_INLINE void store_partial(float* p, Vf x, int64_t count) {
  const int n = clamp_count(count);
  for (int i = 0; i < n; ++i) p[i] = x.v[i];
}

FLASHTILE_INLINE Vf select(Mf m, Vf if_set, Vf if_clear) { return {m.m ? if_set.v : if_clear.v}; }
FLASHTILE_INLINE Vu as_vu(Vf a) { return {reinterpret_cast<UintLanes>(a.v)}; }
FLASHTILE_INLINE Vf as_vf(Vu a) { return {reinterpret_cast<FloatLanes>(a.v)}; }

FLASHTILE_INLINE Vf operator+(Vf a, Vf b) { return {a.v + b.v}; }
FLASHTILE_INLINE Vf operator-(Vf a, Vf b) { return {a.v - b.v}; }
FLASHTILE_INLINE Vf operator*(Vf a, Vf b) { return {a.v * b.v}; }
FLASHTILE_INLINE Vf operator/(Vf a, Vf b) { return {a.v / b.v}; }
FLASHTILE_INLINE Vf operator-(Vf a) { return {-a.v}; }
FLASHTILE_INLINE Vf fma(Vf a, Vf b, Vf c) { return {a.v * b.v + c.v}; }
FLASHTILE_INLINE Vf fnma(Vf a, Vf b, Vf c) { return {c.v - a.v * b.v}; }

FLASHTILE_INLINE Mf operator<(Vf a, Vf b) { return {a.v < b.v}; }
FLASHTILE_INLINE Mf operator<=(Vf a, Vf b) { return {a.v <= b.v}; }
FLASHTILE_INLINE Mf operator>(Vf a, Vf b) { return {a.v > b.v}; }
FLASHTILE_INLINE Mf operator>=(Vf a, Vf b) { return {a.v >= b.v}; }
FLASHTILE_INLINE Mf operator==(Vf a, Vf b) { return {a.v == b.v}; }
FLASHTILE_INLINE Mf operator!=(Vf a, Vf b) { return {a.v != b.v}; }

FLASHTILE_INLINE Vf min(Vf a, Vf b) { return select(a < b, a, b); }
FLASHTILE_INLINE Vf max(Vf a, Vf b) { return select(a > b, a, b); }
FLASHTILE_INLINE Vf abs(Vf a) {
  return as_vf({as_vu(a).v & UintLanes{0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF}});
}
FLASHTILE_INLINE Vf sqrt(Vf a) {
  return {FloatLanes{__builtin_sqrtf(a.v[0]), __builtin_sqrtf(a.v[1]), __builtin_sqrtf(a.v[2]),
                     __builtin_sqrtf(a.v[3])}};
}
FLASHTILE_INLINE Vf round_nearest(Vf a) {
  // Adding and taking away 2^23 rounds in the current mode, to nearest even; larger numbers are
  // whole already. The sign comes back last, so that -0.3 gives -0.
  const Vf magic = broadcast(8388608.0f);
  const Vf size = abs(a);
  const Vf rounded = (size + magic) - magic;
  const UintLanes sign = as_vu(a).v & ~as_vu(abs(a)).v;
  return select(size < magic, as_vf({as_vu(rounded).v | sign}), a);
}
FLASHTILE_INLINE Vf floor(Vf a) {
  const Vf r = round_nearest(a);
  return select(r > a, r - broadcast(1.0f), r);
}

// ---- unsigned 32-bit integers ----

FLASHTILE_INLINE Vu broadcast_u(uint32_t x) { return {UintLanes{x, x, x, x}}; }
FLASHTILE_INLINE Vu iota_u() { return {UintLanes{0, 1, 2, 3}}; }
FLASHTILE_INLINE Vu load_u(const uint32_t* p) {
  Vu x;
  __builtin_memcpy(&x.v, p, 16);
  return x;
}
FLASHTILE_INLINE void store_u(uint32_t* p, Vu x) { __builtin_memcpy(p, &x.v, 16); }
FLASHTILE_INLINE Vu load_u_partial(const uint32_t* p, int64_t count) {
  const int n = clamp_count(count);
  return {UintLanes{n > 0 ? p[0] : 0, n > 1 ? p[1] : 0, n > 2 ? p[2] : 0, n > 3 ? p[3] : 0}};
}
FLASHTILE_INLINE void store_u_partial(uint32_t* p, Vu x, int64_t count) {
  const int n = clamp_count(count);
  for (int i = 0; i < n; ++i) p[i] = x.v[i];
}
FLASHTILE_INLINE Vu load_u16(const uint16_t* p) { return {UintLanes{p[0], p[1], p[2], p[3]}}; }
FLASHTILE_INLINE Vu load_u16_partial(const uint16_t* p, int64_t count) {
  const int n = clamp_count(count);
  return {UintLanes{n > 0 ? p[0] : 0u, n > 1 ? p[1] : 0u, n > 2 ? p[2] : 0u, n > 3 ? p[3] : 0u}};
}
FLASHTILE_INLINE Vu load_u8(const uint8_t* p) { return {UintLanes{p[0], p[1], p[2], p[3]}}; }
FLASHTILE_INLINE Vu load_u8_partial(const uint8_t* p, int64_t count) {
  const int n = clamp_count(count);
  return {UintLanes{n > 0 ? p[0] : 0u, n > 1 ? p[1] : 0u, n > 2 ? p[2] : 0u, n > 3 ? p[3] : 0u}};
}
/// Stores the low half of each lane.
FLASHTILE_INLINE void store_u16(uint16_t* p, Vu x) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<uint16_t>(x.v[i]);
}
FLASHTILE_INLINE void store_u16_partial(uint16_t* p, Vu x, int64_t count) {
  const int n = clamp_count(count);
  for (int i = 0; i < n; ++i) p[i] = static_cast<uint16_t>(x.v[i]);
}
/// Lanes 4 g .. 4 g + 3 go to p + g * stride, for g < kLanes / 4.
FLASHTILE_INLINE void store_u_groups(uint32_t* p, int64_t /*stride*/, Vu x) { store_u(p, x); }

FLASHTILE_INLINE Vu operator+(Vu a, Vu b) { return {a.v + b.v}; }
FLASHTILE_INLINE Vu operator-(Vu a, Vu b) { return {a.v - b.v}; }
FLASHTILE_INLINE Vu operator^(Vu a, Vu b) { return {a.v ^ b.v}; }
FLASHTILE_INLINE Vu operator&(Vu a, Vu b) { return {a.v & b.v}; }
FLASHTILE_INLINE Vu operator|(Vu a, Vu b) { return {a.v | b.v}; }
FLASHTILE_INLINE Vu operator<<(Vu a, int n) { return {a.v << static_cast<uint32_t>(n)}; }
FLASHTILE_INLINE Vu operator>>(Vu a, int n) { return {a.v >> static_cast<uint32_t>(n)}; }
FLASHTILE_INLINE Vu mul_lo(Vu a, Vu b) { return {a.v * b.v}; }
FLASHTILE_INLINE Vu mul_hi(Vu a, Vu b) {
  Vu r;
  for (int i = 0; i < kLanes; ++i) {
    r.v[i] = static_cast<uint32_t>((static_cast<uint64_t>(a.v[i]) * b.v[i]) >> 32);
  }
  return r;
}
FLASHTILE_INLINE Mf operator==(Vu a, Vu b) { return {a.v == b.v}; }
FLASHTILE_INLINE Mf less_i32(Vu a, Vu b) {
  return {reinterpret_cast<IntLanes>(a.v) < reinterpret_cast<IntLanes>(b.v)};
}
FLASHTILE_INLINE Vu select(Mf m, Vu if_set, Vu if_clear) { return {m.m ? if_set.v : if_clear.v}; }
FLASHTILE_INLINE Vf i32_to_float(Vu a) {
  return {__builtin_convertvector(reinterpret_cast<IntLanes>(a.v), FloatLanes)};
}
FLASHTILE_INLINE Vu round_to_i32(Vf a) {
  return {reinterpret_cast<UintLanes>(__builtin_convertvector(round_nearest(a).v, IntLanes))};
}

// ---- halves in memory ----

/// The floats of halves in the low part of each lane.
FLASHTILE_INLINE Vf from_f16_bits(Vu h) {
  const Vu sign = (h & broadcast_u(0x8000)) << 16;
  const Vu size = h & broadcast_u(0x7FFF);
  const Vu normal = (size << 13) + broadcast_u(112u << 23);  // exponent bias 15 -> 127
  const Vu quiet = select(less_i32(broadcast_u(0x7C00), size), broadcast_u(0x400000), Vu{});
  const Vu special = (size << 13) | broadcast_u(0x7F800000) | quiet;
  const Vu subnormal = as_vu(i32_to_float(size) * broadcast(0x1p-24f));
  const Vu finite = select(less_i32(size, broadcast_u(0x400)), subnormal, normal);
  return as_vf(sign | select(less_i32(size, broadcast_u(0x7C00)), finite, special));
}
/// The half of each lane in its low part: nearest even, NaN made quiet.
FLASHTILE_INLINE Vu to_f16_bits(Vf x) {
  const Vu sign = (as_vu(x) >> 16) & broadcast_u(0x8000);
  const Vu size = as_vu(x) & broadcast_u(0x7FFFFFFF);
  // Ties go to even by adding half of the last place less one, plus the bit that will be last. A
  // carry into the exponent is right, up to infinity.
  const Vu odd = (size >> 13) & broadcast_u(1);
  const Vu normal = (size - broadcast_u(112u << 23) + broadcast_u(0xFFF) + odd) >> 13;
  // Adding 0.5 aligns a small number so that the float addition itself rounds it to 2^-24.
  const Vu subnormal = as_vu(as_vf(size) + broadcast(0.5f)) - broadcast_u(0x3F000000);
  const Vu nan = ((size >> 13) & broadcast_u(0x3FF)) | broadcast_u(0x7E00);
  Vu h = select(less_i32(size, broadcast_u(113u << 23)), subnormal, normal);
  h = select(less_i32(size, broadcast_u(0x47800000)), h, broadcast_u(0x7C00));  // 2^16 and on
  h = select(less_i32(broadcast_u(0x7F800000), size), nan, h);
  return sign | h;
}
FLASHTILE_INLINE Vf load(const F16* p) { return from_f16_bits(load_u16(&p->bits)); }
FLASHTILE_INLINE Vf load_partial(const F16* p, int64_t count) {
  return from_f16_bits(load_u16_partial(&p->bits, count));
}
FLASHTILE_INLINE void store(F16* p, Vf x) { store_u16(&p->bits, to_f16_bits(x)); }
FLASHTILE_INLINE void store_partial(F16* p, Vf x, int64_t count) {
  store_u16_partial(&p->bits, to_f16_bits(x), count);
}

// ---- across lanes ----

/// Halves are folded onto each other: 2, 1.
FLASHTILE_INLINE float reduce_add(Vf a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
FLASHTILE_INLINE float reduce_max(Vf a) {
  const float x = a.v[0] > a.v[2] ? a.v[0] : a.v[2];
  const float y = a.v[1] > a.v[3] ? a.v[1] : a.v[3];
  return x > y ? x : y;
}

/// x[i] lane j <-> x[j] lane i.
FLASHTILE_INLINE void transpose(Vu (&x)[4]) {
  const UintLanes a = x[0].v;
  const UintLanes b = x[1].v;
  const UintLanes c = x[2].v;
  const UintLanes d = x[3].v;
  x[0].v = UintLanes{a[0], b[0], c[0], d[0]};
  x[1].v = UintLanes{a[1], b[1], c[1], d[1]};
  x[2].v = UintLanes{a[2], b[2], c[2], d[2]};
  x[3].v = UintLanes{a[3], b[3], c[3], d[3]};
}

}  // namespace flashtile::cpu::FLASHTILE_ISA

#include "cpu/simd/powers.hpp"
