// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tile registers (AMX): eight of 16 rows of 64 bytes, of which a product takes 16 cycles.
//
//   dot<c, a, b>()   C += A B: C 16 x 16 floats, A 16 rows of 16 pairs of bfloat16, B 16 rows of 16
//                    pairs. Even and odd elements of k are summed apart, from zero, by fused
//                    multiply-adds, and both sums are added to C. Subnormals count as zero.
//
// Numbers of registers are part of an instruction. Compilers do not move these past each other or
// past what memory holds. Tests have the same as plain loops (tests/unit/gemm_tiles_scalar.cpp).

#include "cpu/simd/types.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

struct AmxTiles {
  /// All registers in their full size. A thread may use them between the two; they are zero then.
  static FLASHTILE_INLINE void open() {
    struct alignas(64) Config {
      uint8_t palette = 1;
      uint8_t start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    const Config config;
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  static FLASHTILE_INLINE void close() { asm volatile("tilerelease"); }

  template <int kTile>
  static FLASHTILE_INLINE void clear() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  static FLASHTILE_INLINE void load(const void* rows, int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
                 :
                 : "r"(rows), "r"(row_bytes), "i"(kTile)
                 : "memory");
  }
  template <int kTile>
  static FLASHTILE_INLINE void store(void* rows, int64_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
                 :
                 : "r"(rows), "r"(row_bytes), "i"(kTile)
                 : "memory");
  }
  template <int kC, int kA, int kB>
  static FLASHTILE_INLINE void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

}  // namespace flashtile::cpu::FLASHTILE_ISA
