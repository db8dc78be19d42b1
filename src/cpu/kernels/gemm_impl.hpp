// SPDX-License-Identifier: Apache-2.0
#pragma once

// The text behind gemm.hpp, compiled once for each instruction set.
//
// A tile is rows x vectors of accumulators in registers (6 x 4 of 32, 6 x 2 of 16), plus a row of B
// and one broadcast. The strip of B (k x kTileVecs vectors) stays in L1 while all of A passes by
// it. A step of k is one float, or with gemm_bf16 one pair of bfloat16.
//
// On a Zen 5 core, m = 64, n and k of 64 to 128: about 95 % of the FMA peak, and of the dot
// product's.

#include "cpu/kernels/gemm.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

template <int kRows, int kVecs>
using Accumulators = Vf[static_cast<size_t>(kRows)][static_cast<size_t>(kVecs)];

/// C = alpha * acc (+ addend or C, times row_scale) for one tile at (row, col).
template <int kRows, int kVecs>
FLASHTILE_INLINE void store_tile(const Accumulators<kRows, kVecs>& acc, const GemmC& out,
                                 int64_t row, int64_t col) {
  const Vf alpha = broadcast(out.alpha);
  float* c = out.c + row * out.ldc + col;
  const float* addend = out.accumulate ? out.c : out.addend;
  if (addend == nullptr) {
    FLASHTILE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      FLASHTILE_UNROLL
      for (int v = 0; v < kVecs; ++v) store(c + i * out.ldc + v * kLanes, acc[i][v] * alpha);
    }
    return;
  }
  const int64_t stride = out.accumulate ? out.ldc : out.addend_row_stride;
  addend += row * stride + col;
  if (out.row_scale != nullptr) {
    FLASHTILE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const Vf scale = broadcast(out.row_scale[row + i]);
      FLASHTILE_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        store(c + i * out.ldc + v * kLanes,
              fma(acc[i][v], alpha, load(addend + i * stride + v * kLanes) * scale));
      }
    }
    return;
  }
  FLASHTILE_UNROLL
  for (int i = 0; i < kRows; ++i) {
    FLASHTILE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      store(c + i * out.ldc + v * kLanes,
            fma(acc[i][v], alpha, load(addend + i * stride + v * kLanes)));
    }
  }
}

/// A and B as the tile reads them: `steps` words of A at any stride, rows of B one step apart.
template <typename T>
struct Operands {
  const T* a;
  int64_t a_row_stride;
  int64_t a_step_stride;
  const T* b;
  int64_t b_step_stride;
  int64_t steps;
};

/// One step for one vector, of floats and of bfloat16 pairs. B's columns are kStepWidth apart.
struct FloatStep {
  using Element = float;
  static constexpr int kStepWidth = 1;
  static FLASHTILE_INLINE Vf load_a(const float* p) { return broadcast(*p); }
  static FLASHTILE_INLINE Vf load_b(const float* p) { return load(p); }
  static FLASHTILE_INLINE Vf add(Vf a, Vf b, Vf c) { return fma(a, b, c); }
};

/// One register tile: kRows rows of A, from `row`, times kVecs vectors of B, from column `col`.
template <typename Step, int kRows, int kVecs>
void gemm_tile(const Operands<typename Step::Element>& in, int64_t row, int64_t col,
               const GemmC& out) {
  RowPrefetch* const prefetch = out.prefetch;
  const int64_t period = prefetch == nullptr ? in.steps : prefetch->period;
  Accumulators<kRows, kVecs> acc;
  int64_t offset[static_cast<size_t>(kRows)];
  FLASHTILE_UNROLL
  for (int i = 0; i < kRows; ++i) {
    offset[i] = i * in.a_row_stride;
    FLASHTILE_UNROLL
    for (int v = 0; v < kVecs; ++v) acc[i][v] = zero();
  }
  const auto* a = in.a + row * in.a_row_stride;
  const auto* b = in.b + col * Step::kStepWidth;
  for (int64_t p = 0; p < in.steps;) {
    if (prefetch != nullptr) prefetch->step();
    const int64_t end = in.steps - p < period ? in.steps : p + period;
    for (; p < end; ++p) {
      decltype(Step::load_b(b)) bv[static_cast<size_t>(kVecs)];
      FLASHTILE_UNROLL
      for (int v = 0; v < kVecs; ++v) bv[v] = Step::load_b(b + v * kLanes * Step::kStepWidth);
      FLASHTILE_UNROLL
      for (int i = 0; i < kRows; ++i) {
        const auto x = Step::load_a(a + offset[i]);
        FLASHTILE_UNROLL
        for (int v = 0; v < kVecs; ++v) acc[i][v] = Step::add(x, bv[v], acc[i][v]);
      }
      a += in.a_step_stride;
      b += in.b_step_stride;
    }
  }
  store_tile<kRows, kVecs>(acc, out, row, col);
}

/// A tile of `rows` <= kMaxRows rows.
template <typename Step, int kMaxRows, int kVecs>
FLASHTILE_INLINE void gemm_rows(const Operands<typename Step::Element>& in, int64_t rows,
                                int64_t row, int64_t col, const GemmC& out) {
  if (rows == kMaxRows) return gemm_tile<Step, kMaxRows, kVecs>(in, row, col, out);
  if constexpr (kMaxRows > 1) gemm_rows<Step, kMaxRows - 1, kVecs>(in, rows, row, col, out);
}

/// All rows against kVecs vectors of B, in as few tiles as possible and those of about one size: 8
/// rows are faster as 4 + 4 than as 6 + 2.
template <typename Step, int kVecs>
void gemm_strip(const Operands<typename Step::Element>& in, int64_t m, int64_t col,
                const GemmC& out) {
  constexpr int64_t kMaxRows = kTileRows[kVecs - 1];
  int64_t num_tiles = (m + kMaxRows - 1) / kMaxRows;
  for (int64_t row = 0; row < m; --num_tiles) {
    const int64_t rows = (m - row + num_tiles - 1) / num_tiles;
    gemm_rows<Step, kMaxRows, kVecs>(in, rows, row, col, out);
    row += rows;
  }
}

template <typename Step>
FLASHTILE_INLINE void gemm_with(const Operands<typename Step::Element>& in, int64_t m, int64_t n,
                                const GemmC& out) {
  const int64_t num_vecs = padded(n) / kLanes;
  int64_t vec = 0;
  for (; vec + kTileVecs <= num_vecs; vec += kTileVecs) {
    gemm_strip<Step, kTileVecs>(in, m, vec * kLanes, out);
  }
  const int64_t rest = num_vecs - vec;
  if constexpr (kTileVecs == 4) {
    if (rest == 3) gemm_strip<Step, 3>(in, m, vec * kLanes, out);
    if (rest == 2) gemm_strip<Step, 2>(in, m, vec * kLanes, out);
  }
  if (rest == 1) gemm_strip<Step, 1>(in, m, vec * kLanes, out);
}

void gemm(int64_t m, int64_t n, int64_t k, const GemmA& a, const float* b, int64_t ldb,
          const GemmC& out) {
  gemm_with<FloatStep>({a.data, a.row_stride, a.col_stride, b, ldb, k}, m, n, out);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
