// SPDX-License-Identifier: Apache-2.0
//
// Products of a warp on keys and values of 8 bits, which are widened between shared memory and
// tensor cores. A word of four codes is what a matrix of ldmatrix gives a lane: two registers of a
// fragment.
//
// Keys: columns 4t .. 4t + 3 of sixteen. They are the product's columns 2t, 2t + 1, 2t + 8, 2t + 9,
// for which queries lie in a PairedTile. Values, transposed: columns 2g and 2g + 1 of keys 2t and
// 2t + 1. Even columns are one product and odd ones another, so that a lane's results are columns
// 4t .. 4t + 3 of sixteen: 4t, 4t + 1 of the first of two accumulator tiles, the others of the
// second.
#pragma once

#include "cuda/device/mma/codes.cuh"
#include "cuda/device/mma/half_operands.cuh"

namespace flashtile::device {

/// multiply_rows, where the rows of the right side are codes and those of the left side paired.
template <Element element, int kTilesM, int kN, int kCols, bool kInRegisters, class RowsTile,
          class ColumnsTile>
FLASHTILE_DEVICE void multiply_code_rows(float (&acc)[kTilesM][kN / 8][4],
                                         const HalfRows<kTilesM, kCols>& held, uint32 rows_tile,
                                         int first_row, uint32 columns_tile, int first_column) {
  static_assert(kIsPaired<RowsTile>, "four neighbouring codes meet two pairs");
  constexpr int kSteps = kCols / 16;
  const uint32 rows_base = rows_tile + HalfLane::rows() + static_cast<uint32>(first_row * 128);
  const uint32 columns_base =
      columns_tile + HalfLane::columns() + static_cast<uint32>(first_column * 128);
  FLASHTILE_UNROLL
  for (int both = 0; both < (kSteps + 1) / 2; ++both) {
    uint32 a[2][kTilesM][4];
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int step = 2 * both + half;
      if (step < kSteps) take_rows<kInRegisters, RowsTile>(a[half], held, rows_base, step);
    }
    FLASHTILE_UNROLL
    for (int n = 0; n < kN / 16; ++n) {
      // Of eight keys and sixteen columns each: columns first.
      uint32 words[4];
      load_matrices(words, step_address<ColumnsTile::kGroupBytes>(columns_base, both) +
                               static_cast<uint32>(n * 16 * 128));
      FLASHTILE_UNROLL
      for (int half = 0; half < 2; ++half) {
        if (2 * both + half >= kSteps) continue;
        FLASHTILE_UNROLL
        for (int tile = 0; tile < 2; ++tile) {
          uint32 b[2];
          widen<element, kCodeOf<ColumnsTile>, false>(words[2 * tile + half], b);
          FLASHTILE_UNROLL
          for (int m = 0; m < kTilesM; ++m) {
            mma_16x8x16<element>(acc[m][2 * n + tile], a[half][m], b[0], b[1]);
          }
        }
      }
    }
  }
}

/// multiply_values of codes. Columns of the accumulator come in fours, see above.
template <Element element, int kTilesM, int kTilesV, int kN, int kCols, class ValuesTile>
FLASHTILE_DEVICE void multiply_code_values(float (&acc)[kTilesM][kTilesV][4],
                                           const HalfWeights<element, kTilesM, kN>& weights,
                                           uint32 values_tile, int first_key, int first_tile) {
  const uint32 base = values_tile + HalfLane::rows() + static_cast<uint32>(first_key * 128);
  FLASHTILE_UNROLL
  for (int step = 0; step < kN / 16; ++step) {
    FLASHTILE_UNROLL
    for (int both = 0; both < (kCols / 16 + 1) / 2; ++both) {
      // Of eight keys and sixteen columns each: keys first.
      uint32 words[4];
      load_matrices_transposed(words, step_address<ValuesTile::kGroupBytes>(base, both) +
                                          static_cast<uint32>(step * 16 * 128));
      FLASHTILE_UNROLL
      for (int half = 0; half < 2; ++half) {
        if (2 * both + half >= kCols / 16) continue;
        uint32 first[2], last[2];  // even and odd columns of keys 0 to 7, and 8 to 15
        widen<element, kCodeOf<ValuesTile>, true>(words[2 * half], first);
        widen<element, kCodeOf<ValuesTile>, true>(words[2 * half + 1], last);
        const int tile = first_tile + 2 * (2 * both + half);
        FLASHTILE_UNROLL
        for (int m = 0; m < kTilesM; ++m) {
          FLASHTILE_UNROLL
          for (int odd = 0; odd < 2; ++odd) {
            float sums[4];
            FLASHTILE_UNROLL
            for (int r = 0; r < 4; ++r) sums[r] = acc[m][tile + r % 2][r / 2 * 2 + odd];
            mma_16x8x16<element>(sums, weights.fragments[step][m], first[odd], last[odd]);
            FLASHTILE_UNROLL
            for (int r = 0; r < 4; ++r) acc[m][tile + r % 2][r / 2 * 2 + odd] = sums[r];
          }
        }
      }
    }
  }
}

}  // namespace flashtile::device
