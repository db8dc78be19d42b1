// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/simd/types.hpp"

namespace flashtile::testing {

/// A product of pairs of bfloat16; see cpu/kernels/gemm_bf16.hpp.
struct TileProduct {
  int64_t m, n, k;
  const cpu::Bf16* a;
  int64_t row_stride, pair_stride;
  const cpu::Bf16* b;
  int64_t ldb;
  float* c;
  int64_t ldc;
  float alpha = 1.0f;
  bool accumulate = false;
  const float* row_scale = nullptr;
  const float* addend = nullptr;
  int64_t addend_row_stride = 0;
};

/// By the text of cpu/kernels/gemm_tiles.hpp, over tile registers that are plain arrays.
void multiply_emulated_tiles(const TileProduct& product);

}  // namespace flashtile::testing
