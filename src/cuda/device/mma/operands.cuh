// SPDX-License-Identifier: Apache-2.0
//
// The same names for products on 16-bit elements and on float32.
#pragma once

#include "cuda/device/mma/code_operands.cuh"
#include "cuda/device/mma/float_operands.cuh"
#include "cuda/device/mma/half_operands.cuh"

namespace flashtile::device {

template <Element element, int kTilesM, int kCols>
struct HeldRowsOf {
  using Type = HalfRows<kTilesM, kCols>;
};
template <int kTilesM, int kCols>
struct HeldRowsOf<Element::kF32, kTilesM, kCols> {
  using Type = FloatRows;
};
/// Rows on the left side of products that may stay in registers.
template <Element element, int kTilesM, int kCols>
using HeldRows = typename HeldRowsOf<element, kTilesM, kCols>::Type;

template <Element element, int kTilesM, int kN>
struct WeightsOf {
  using Type = HalfWeights<element, kTilesM, kN>;
};
template <int kTilesM, int kN>
struct WeightsOf<Element::kF32, kTilesM, kN> {
  using Type = FloatWeights<kTilesM, kN>;
};
/// Probabilities on the left side of their product with values.
template <Element element, int kTilesM, int kN>
using Weights = typename WeightsOf<element, kTilesM, kN>::Type;

/// With kRowsAreKeys sums in float32 are those that the other way round would give, bit by bit:
/// the logits of the backward must be those that lse is made of.
template <Element element, int kTilesM, int kN, int kCols, bool kInRegisters, class RowsTile,
          class ColumnsTile, bool kRowsAreKeys = false>
FLASHTILE_DEVICE void accumulate_scores(float (&acc)[kTilesM][kN / 8][4],
                                        const HeldRows<element, kTilesM, kCols>& held,
                                        uint32 rows_tile, int first_row, uint32 columns_tile,
                                        int first_column) {
  if constexpr (element == Element::kF32) {
    multiply_float_rows<kTilesM, kN, kCols, RowsTile, ColumnsTile, kRowsAreKeys>(
        acc, rows_tile, first_row, columns_tile, first_column);
  } else if constexpr (kCodeOf<ColumnsTile> != Element::kNone) {
    multiply_code_rows<element, kTilesM, kN, kCols, kInRegisters, RowsTile, ColumnsTile>(
        acc, held, rows_tile, first_row, columns_tile, first_column);
  } else {
    multiply_rows<element, kTilesM, kN, kCols, kInRegisters, RowsTile, ColumnsTile>(
        acc, held, rows_tile, first_row, columns_tile, first_column);
  }
}

/// The first kStep tiles of columns go behind the last one. Registers have no index at run time: in
/// this way a loop of short text passes over an accumulator, which in the end is as it was.
template <int kStep, int kTiles>
FLASHTILE_DEVICE void turn_tiles(float (&acc)[1][kTiles][4]) {
  static_assert(kTiles % kStep == 0, "whole turns");
  float first[kStep][4];
  FLASHTILE_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    FLASHTILE_UNROLL
    for (int r = 0; r < 4; ++r) {
      if (n < kStep) first[n][r] = acc[0][n][r];
      acc[0][n][r] = n + kStep < kTiles ? acc[0][n + kStep < kTiles ? n + kStep : 0][r]
                                        : first[(n + kStep) % kTiles % kStep][r];
    }
  }
}

template <Element element, int kTilesM, int kTilesV, int kN, int kCols, class ValuesTile>
FLASHTILE_DEVICE void accumulate_values(float (&acc)[kTilesM][kTilesV][4],
                                        const Weights<element, kTilesM, kN>& weights,
                                        uint32 values_tile, int first_key, int first_tile) {
  if constexpr (element == Element::kF32) {
    multiply_float_values<kTilesM, kTilesV, kN, kCols, ValuesTile>(acc, weights, values_tile,
                                                                   first_key, first_tile);
  } else if constexpr (kCodeOf<ValuesTile> != Element::kNone) {
    multiply_code_values<element, kTilesM, kTilesV, kN, kCols, ValuesTile>(
        acc, weights, values_tile, first_key, first_tile);
  } else {
    multiply_values<element, kTilesM, kTilesV, kN, kCols, ValuesTile>(acc, weights, values_tile,
                                                                      first_key, first_tile);
  }
}

}  // namespace flashtile::device
