// SPDX-License-Identifier: Apache-2.0
//
// Tile registers as plain arrays, so that every machine tests the products over them.
#include "cpu/kernels/gemm_tiles.hpp"
#include "cpu/simd/amx_tiles.hpp"
#include "unit/gemm_tiles.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {
namespace {

/// As AmxTiles.
struct EmulatedTiles {
  struct Register {
    uint32_t rows[16][16];
  };
  static Register registers[8];

  template <int kTile>
  static void clear() {
    __builtin_memset(&registers[kTile], 0, sizeof(Register));
  }
  template <int kTile>
  static void load(const void* rows, int64_t row_bytes) {
    for (int64_t i = 0; i < 16; ++i) {
      __builtin_memcpy(registers[kTile].rows[i], static_cast<const char*>(rows) + i * row_bytes,
                       64);
    }
  }
  template <int kTile>
  static void store(void* rows, int64_t row_bytes) {
    for (int64_t i = 0; i < 16; ++i) {
      __builtin_memcpy(static_cast<char*>(rows) + i * row_bytes, registers[kTile].rows[i], 64);
    }
  }
  static float as_float(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, sizeof(value));
    return value;
  }
  static float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126f ? 0.0f : x; }
  static float low(uint32_t pair) { return flushed(as_float(pair << 16)); }
  static float high(uint32_t pair) { return flushed(as_float(pair & 0xFFFF0000u)); }

  template <int kC, int kA, int kB>
  static void dot() {
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) {
        float even = 0;
        float odd = 0;
        for (int p = 0; p < 16; ++p) {
          const uint32_t a = registers[kA].rows[i][p];
          const uint32_t b = registers[kB].rows[p][j];
          even = flushed(__builtin_fmaf(low(a), low(b), even));
          odd = flushed(__builtin_fmaf(high(a), high(b), odd));
        }
        uint32_t& c = registers[kC].rows[i][j];
        const float sum = flushed(flushed(as_float(c)) + flushed(even + odd));
        __builtin_memcpy(&c, &sum, sizeof(sum));
      }
    }
  }
};
EmulatedTiles::Register EmulatedTiles::registers[8];

}  // namespace
}  // namespace flashtile::cpu::FLASHTILE_ISA

namespace flashtile::testing {

void multiply_emulated_tiles(const TileProduct& x) {
  using namespace cpu::FLASHTILE_ISA;
  multiply_tiles<EmulatedTiles>(
      x.m, x.n, x.k, {x.a, x.row_stride, x.pair_stride}, x.b, x.ldb,
      {x.c, x.ldc, x.alpha, x.accumulate, x.row_scale, nullptr, x.addend, x.addend_row_stride});
}

}  // namespace flashtile::testing
