// SPDX-License-Identifier: Apache-2.0
#pragma once

// The vector layer. A .cpp that is compiled for one instruction set defines exactly one of
//   FLASHTILE_ISA_SCALAR  FLASHTILE_ISA_AVX2  FLASHTILE_ISA_AVX512  FLASHTILE_ISA_AVX512_BF16
//   FLASHTILE_ISA_NEON
// before its first include. Everything below, and every kernel header written over it, then lives
// in `namespace flashtile::cpu::FLASHTILE_ISA`; FLASHTILE_ISA_NAME is that name as text.
//
// Kernel text may use no std template and no inline function from outside this namespace:
// scripts/check_symbols.py fails the build if an ISA-flagged object emits a shared symbol.
//
// Types: Vf (kLanes floats), Mf (a mask for kLanes lanes), Vu (kLanes uint32).
//   memory    load store load_partial store_partial, for float, Bf16, F16 (converted to and from
//             float; rounding to nearest even, NaN stays NaN), uint32 (load_u ...), uint16
//             (load_u16 widens). No alignment is needed; *_partial never touches memory past
//             `count`, which is clamped to [0, kLanes], and reads zeros there.
//   floats    + - * / unary-, fma(a, b, c) = a * b + c, fnma(a, b, c) = c - a * b, abs, sqrt,
//   floor,
//             round_nearest (ties to even), scale_pow2, broadcast, zero
//   min, max  min(a, b) is a < b ? a : b and max(a, b) is a > b ? a : b, so a NaN in `a` is dropped
//             and a NaN in `b` is kept; max(x, running_max) hence ignores NaN, and max(limit, x)
//             lets it through.
//   masks     < <= > >= == != (false for NaN, != true), & | ^ ~, select(m, if_set, if_clear),
//             first_lanes(count), any, all, bits
//   integers  Vu: + - ^ & | << >> (logical), mul_lo, mul_hi (unsigned), less_i32 (signed), as_vu,
//             as_vf (bit casts), round_to_i32, i32_to_float, iota_u
//   across    reduce_add, reduce_max (in a fixed order), transpose (kLanes x kLanes of Vf or Vu)
//   math.hpp  exp2, exp, log, tanh, ...

#include "cpu/simd/types.hpp"

#define FLASHTILE_ISA_STRINGIZE_(x) #x
#define FLASHTILE_ISA_STRINGIZE(x) FLASHTILE_ISA_STRINGIZE_(x)

#if defined(FLASHTILE_ISA_SCALAR)
#define FLASHTILE_ISA scalar
#include "cpu/simd/simd_scalar.hpp"
#elif defined(FLASHTILE_ISA_AVX2)
#define FLASHTILE_ISA avx2
#include "cpu/simd/simd_avx2.hpp"
#elif defined(FLASHTILE_ISA_AVX512)
#define FLASHTILE_ISA avx512
#include "cpu/simd/simd_avx512.hpp"
#elif defined(FLASHTILE_ISA_AVX512_BF16)
#define FLASHTILE_ISA avx512_bf16
#include "cpu/simd/simd_avx512_bf16.hpp"
#elif defined(FLASHTILE_ISA_NEON)
#define FLASHTILE_ISA neon
#include "cpu/simd/simd_neon.hpp"
#else
#error "define one of the FLASHTILE_ISA_* macros before including cpu/simd/simd.hpp"
#endif

#define FLASHTILE_ISA_NAME FLASHTILE_ISA_STRINGIZE(FLASHTILE_ISA)

#include "cpu/simd/math.hpp"
