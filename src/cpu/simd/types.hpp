// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shared by all instruction sets. Plain types and macros only: a function defined here would be
// emitted by every ISA-flagged file, and the linker might keep the one that needs AVX-512.

#include <cstddef>
#include <cstdint>

#define FLASHTILE_INLINE inline __attribute__((always_inline))
#define FLASHTILE_NOINLINE __attribute__((noinline))

// Arrays of vector values live in registers only if the loops over them are unrolled completely.
#if defined(__clang__)
#define FLASHTILE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define FLASHTILE_UNROLL _Pragma("GCC unroll 32")
#endif

namespace flashtile::cpu {

/// One bfloat16 in memory.
struct Bf16 {
  uint16_t bits;
};

/// One IEEE half in memory.
struct F16 {
  uint16_t bits;
};

/// One signed byte in memory.
struct I8 {
  int8_t value;
};

/// One 8-bit float in memory: 4 bits of exponent, 3 of mantissa.
struct E4m3 {
  uint8_t bits;
};

/// A number as a whole one and a rest in [-0.5, 0.5], in each lane.
template <class V>
struct NearestParts {
  V whole, rest;
};

}  // namespace flashtile::cpu
