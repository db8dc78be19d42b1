// SPDX-License-Identifier: Apache-2.0
#pragma once

// The vector layer. A file named *_<isa>.cpp is compiled with that instruction set's flags and with
// FLASHTILE_ISA=<isa> (cmake/isa.cmake), which picks simd_<isa>.hpp here. Everything below, and
// every kernel header written over it, lives in `namespace flashtile::cpu::FLASHTILE_ISA`;
// FLASHTILE_ISA_NAME is that name as text.
//
// Kernel text may use no std template and no inline function from outside this namespace:
// scripts/check_symbols.py fails where an ISA-flagged object emits a shared symbol.
//
// Types: Vf (kLanes floats), Mf (a mask for kLanes lanes), Vu (kLanes uint32).
//   memory    load store load_partial store_partial, for float, Bf16, F16 (converted to and from
//             float; rounding to nearest even, NaN stays NaN), uint32 (load_u ...), uint16 and
//             uint8 (load_u16, load_u8 widen); load and load_partial for I8 and E4m3 (bytes.hpp).
//             No alignment is needed; *_partial never touches memory past `count`, which is clamped
//             to [0, kLanes], and reads zeros there.
//   floats    + - * / unary-, fma(a, b, c) = a * b + c, fnma(a, b, c) = c - a * b, abs, sqrt,
//             floor, round_nearest (ties to even), scale_pow2, broadcast, zero
//   min, max  min(a, b) is a < b ? a : b and max(a, b) is a > b ? a : b, so a NaN in `a` is dropped
//             and a NaN in `b` is kept; max(x, running_max) hence ignores NaN, and max(limit, x)
//             lets it through.
//   masks     < <= > >= == != (false for NaN, != true), & | ^ ~, select(m, if_set, if_clear),
//             first_lanes(count), any, all, bits
//   integers  Vu: + - ^ & | << >> (logical), mul_lo, mul_hi (unsigned), ==, less_i32 (signed),
//             as_vu, as_vf (bit casts), round_to_i32, i32_to_float, iota_u, store_u_groups
//   across    reduce_add, reduce_max (in a fixed order), transpose (kLanes x kLanes of Vu)
//   math.hpp  exp2, exp2_fast, exp, log, log2, tanh, sigmoid, softplus, silu, silu_slope,
//             log_scalar

#include "cpu/simd/types.hpp"

#if !defined(FLASHTILE_ISA)
#error "FLASHTILE_ISA is not set: this header is only for files named *_<isa>.cpp"
#endif

#define FLASHTILE_STRINGIZE_(x) #x
#define FLASHTILE_STRINGIZE(x) FLASHTILE_STRINGIZE_(x)
#define FLASHTILE_CONCAT_(a, b) a##b
#define FLASHTILE_CONCAT(a, b) FLASHTILE_CONCAT_(a, b)
#define FLASHTILE_ISA_NAME FLASHTILE_STRINGIZE(FLASHTILE_ISA)

#include FLASHTILE_STRINGIZE(FLASHTILE_CONCAT(simd_, FLASHTILE_ISA).hpp)

#include "cpu/simd/bf16.hpp"
#include "cpu/simd/bytes.hpp"
#include "cpu/simd/math.hpp"
