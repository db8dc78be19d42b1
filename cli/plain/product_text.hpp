// SPDX-License-Identifier: Apache-2.0
//
// The text of product_<isa>.cpp. Nothing here may be shared between those files: everything is
// static or in the namespace of the instruction set.
#pragma once

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "core/float16.hpp"
#include "cpu/simd/types.hpp"
#include "plain/product.hpp"

namespace flashtile::cli::FLASHTILE_ISA {

#if defined(__AVX512F__)
using Vector = __m512;
static constexpr int kTileRows = 6, kTileVectors = 4;
static inline Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(__FMA__)
using Vector = __m256;
static constexpr int kTileRows = 6, kTileVectors = 2;
static inline Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
#else
typedef float Vector __attribute__((vector_size(16)));
static constexpr int kTileRows = 4, kTileVectors = 2;
static inline Vector multiply_add(Vector a, Vector b, Vector c) { return a * b + c; }
#endif

static constexpr int kLanes = static_cast<int>(sizeof(Vector) / sizeof(float));
static constexpr int kTileCols = kTileVectors * kLanes;

/// Rows i .. i + num_rows - 1 of c, and kTileCols columns (fewer are stored at the right edge).
template <int num_rows>
static void multiply_tile(const Product& x, int64_t i, int64_t j) {
  Vector sums[static_cast<size_t>(num_rows)][kTileVectors] = {};
  const float* a = x.a + i * x.a_row_stride;
  const float* b = x.panel;
  for (int64_t p = 0; p < x.depth; ++p, a += x.a_col_stride, b += kTileCols) {
    Vector columns[kTileVectors];
    __builtin_memcpy(columns, b, sizeof columns);
    FLASHTILE_UNROLL
    for (int r = 0; r < num_rows; ++r) {
      const Vector factor = a[r * x.a_row_stride] - Vector{};
      FLASHTILE_UNROLL
      for (int v = 0; v < kTileVectors; ++v) {
        sums[r][v] = multiply_add(factor, columns[v], sums[r][v]);
      }
    }
  }
  const int64_t count = x.num_cols - j < kTileCols ? x.num_cols - j : kTileCols;
  for (int r = 0; r < num_rows; ++r) {
    float* c = x.c + (i + r) * x.num_cols + j;
    float row[kTileCols];
    __builtin_memcpy(row, sums[r], sizeof row);
    for (int64_t n = 0; n < count; ++n) c[n] = x.accumulate ? c[n] + row[n] : row[n];
  }
}

void multiply(const Product& x) {
  for (int64_t j = 0; j < x.num_cols; j += kTileCols) {
    for (int64_t p = 0; p < x.depth; ++p) {
      for (int64_t n = 0; n < kTileCols; ++n) {
        x.panel[p * kTileCols + n] = j + n < x.num_cols ? x.b[p * x.num_cols + j + n] : 0.0f;
      }
    }
    int64_t i = 0;
    for (; i + kTileRows <= x.num_rows; i += kTileRows) multiply_tile<kTileRows>(x, i, j);
    for (; i < x.num_rows; ++i) multiply_tile<1>(x, i, j);
  }
}

void round_f16(float* values, int64_t count) {
  int64_t n = 0;
#if defined(__F16C__)
  for (; n + 8 <= count; n += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(values + n), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_ps(values + n, _mm256_cvtph_ps(halves));
  }
  for (; n < count; ++n) {
    values[n] =
        _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtps_ph(_mm_set_ss(values[n]), _MM_FROUND_TO_NEAREST_INT)));
  }
#else
  for (; n < count; ++n) values[n] = f16_to_float(float_to_f16(values[n]));
#endif
}

}  // namespace flashtile::cli::FLASHTILE_ISA
