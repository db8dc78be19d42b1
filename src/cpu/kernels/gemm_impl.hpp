// SPDX-License-Identifier: Apache-2.0
#pragma once

// The text behind gemm.hpp, compiled once for each instruction set.
//
// A tile is rows x vectors of accumulators in registers: 6 x 4 of 32 registers or 6 x 2 of 16, plus
// a row of B and one broadcast. The strip of B (k x kTileVecs vectors) stays in L1 while all of A
// passes by it.

#include "cpu/kernels/gemm.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Vectors of a full tile, and the most rows of a tile that is `vecs` wide.
inline constexpr int kTileVecs = kNumRegisters >= 32 ? 4 : 2;
constexpr int tile_rows(int vecs) {
  if (kNumRegisters >= 32) return vecs == 4 ? 6 : vecs == 3 ? 8 : 12;
  return vecs == 2 ? 6 : 8;
}

template <int kRows, int kVecs>
using Accumulators = Vf[static_cast<size_t>(kRows)][static_cast<size_t>(kVecs)];

/// C = alpha * acc (+ C * row_scale) for one tile, whose first row is `row`.
template <int kRows, int kVecs>
FLASHTILE_INLINE void store_tile(const Accumulators<kRows, kVecs>& acc, const GemmC& out,
                                 int64_t row, float* c) {
  const Vf alpha = broadcast(out.alpha);
  if (!out.accumulate) {
    FLASHTILE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      FLASHTILE_UNROLL
      for (int v = 0; v < kVecs; ++v) store(c + i * out.ldc + v * kLanes, acc[i][v] * alpha);
    }
    return;
  }
  FLASHTILE_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const Vf scale = broadcast(out.row_scale == nullptr ? 1.0f : out.row_scale[row + i]);
    FLASHTILE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      float* p = c + i * out.ldc + v * kLanes;
      store(p, fma(acc[i][v], alpha, load(p) * scale));
    }
  }
}

/// One register tile: kRows rows of A times kVecs vectors of B.
template <int kRows, int kVecs>
void gemm_tile(int64_t k, const GemmA& a_view, int64_t row, const float* b, int64_t ldb,
               const GemmC& out, int64_t col) {
  Accumulators<kRows, kVecs> acc;
  int64_t offset[static_cast<size_t>(kRows)];
  FLASHTILE_UNROLL
  for (int i = 0; i < kRows; ++i) {
    offset[i] = i * a_view.row_stride;
    FLASHTILE_UNROLL
    for (int v = 0; v < kVecs; ++v) acc[i][v] = zero();
  }
  const float* a = a_view.data + row * a_view.row_stride;
  for (int64_t p = 0; p < k; ++p) {
    Vf bv[static_cast<size_t>(kVecs)];
    FLASHTILE_UNROLL
    for (int v = 0; v < kVecs; ++v) bv[v] = load(b + v * kLanes);
    FLASHTILE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const Vf x = broadcast(a[offset[i]]);
      FLASHTILE_UNROLL
      for (int v = 0; v < kVecs; ++v) acc[i][v] = fma(x, bv[v], acc[i][v]);
    }
    a += a_view.col_stride;
    b += ldb;
  }
  store_tile<kRows, kVecs>(acc, out, row, out.c + row * out.ldc + col);
}

/// The last `rows` < kMaxRows rows of a strip.
template <int kMaxRows, int kVecs>
FLASHTILE_INLINE void gemm_tail(int64_t rows, int64_t k, const GemmA& a, int64_t row,
                                const float* b, int64_t ldb, const GemmC& out, int64_t col) {
  if constexpr (kMaxRows > 1) {
    if (rows == kMaxRows - 1) {
      gemm_tile<kMaxRows - 1, kVecs>(k, a, row, b, ldb, out, col);
    } else {
      gemm_tail<kMaxRows - 1, kVecs>(rows, k, a, row, b, ldb, out, col);
    }
  }
}

/// All rows against kVecs vectors of B.
template <int kVecs>
void gemm_strip(int64_t m, int64_t k, const GemmA& a, const float* b, int64_t ldb, const GemmC& out,
                int64_t col) {
  constexpr int kRows = tile_rows(kVecs);
  int64_t row = 0;
  for (; row + kRows <= m; row += kRows) {
    gemm_tile<kRows, kVecs>(k, a, row, b, ldb, out, col);
  }
  gemm_tail<kRows, kVecs>(m - row, k, a, row, b, ldb, out, col);
}

void gemm(int64_t m, int64_t n, int64_t k, const GemmA& a, const float* b, int64_t ldb,
          const GemmC& out) {
  const int64_t num_vecs = padded(n) / kLanes;
  int64_t vec = 0;
  for (; vec + kTileVecs <= num_vecs; vec += kTileVecs) {
    gemm_strip<kTileVecs>(m, k, a, b + vec * kLanes, ldb, out, vec * kLanes);
  }
  const int64_t col = vec * kLanes;
  const int64_t rest = num_vecs - vec;
  if constexpr (kTileVecs == 4) {
    if (rest == 3) gemm_strip<3>(m, k, a, b + col, ldb, out, col);
    if (rest == 2) gemm_strip<2>(m, k, a, b + col, ldb, out, col);
  }
  if (rest == 1) gemm_strip<1>(m, k, a, b + col, ldb, out, col);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
