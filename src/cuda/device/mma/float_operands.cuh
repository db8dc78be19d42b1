// SPDX-License-Identifier: Apache-2.0
//
// Products of a warp on float32, exact to float32: each operand is split into two TF32 numbers, and
// three of the four products are summed (the fourth is below the last bit). Tensor cores truncate
// their sums, so sums run over at most kFlushColumns products there and are then added with
// rounding; otherwise a bias would grow with the length of the sum.
//
// The order of columns within a product is free as long as both sides agree: here column index t of
// eight stands for column 2t, t + 4 for 2t + 1 (of 16 columns: 4t .. 4t + 3 over two products), so
// that fragments are whole vectors and an accumulator is an operand as it stands.
#pragma once

#include "cuda/device/copy/shared_tile.cuh"
#include "cuda/device/mma/codes.cuh"
#include "cuda/device/ptx/mma.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

constexpr int kFlushColumns = 32;

/// Rounded by integer arithmetic, a quarter of the instructions of the conversion. The difference
/// is exact, and has at most one bit more than the tensor cores read; its sign is that of either
/// side, so that what they leave out has no bias. NaN stays in the small part.
struct SplitFloat {
  uint32 big, small;

  FLASHTILE_DEVICE explicit SplitFloat(float value) {
    big = (bits_of_float(value) + 0x1000u) & 0xffffe000u;
    small = bits_of_float(value - float_from_bits(big));
  }
};

struct SplitLeft {
  uint32 big[4], small[4];

  FLASHTILE_DEVICE SplitLeft(float a0, float a1, float a2, float a3) {
    const float values[4] = {a0, a1, a2, a3};
    FLASHTILE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const SplitFloat split(values[i]);
      big[i] = split.big;
      small[i] = split.small;
    }
  }
};

/// d += a b; small parts first. With kSwapped the sums are those of b' a', bit by bit.
template <bool kSwapped = false>
FLASHTILE_DEVICE void multiply_split(float (&d)[4], const SplitLeft& a, const SplitFloat& b0,
                                     const SplitFloat& b1) {
  if constexpr (kSwapped) {
    mma_16x8x8_tf32(d, a.big, b0.small, b1.small);
    mma_16x8x8_tf32(d, a.small, b0.big, b1.big);
  } else {
    mma_16x8x8_tf32(d, a.small, b0.big, b1.big);
    mma_16x8x8_tf32(d, a.big, b0.small, b1.small);
  }
  mma_16x8x8_tf32(d, a.big, b0.big, b1.big);
}

/// Rows are read again for each product: there are not the registers to hold them.
struct FloatRows {
  template <class SharedTile>
  FLASHTILE_DEVICE void load(uint32, int) {}
};

/// Columns 16 step + 4 place to + 3 of a row, which may be codes.
template <class Tile>
FLASHTILE_DEVICE void load_four(float (&values)[4], uint32 tile, int row, int step, int place) {
  if constexpr (kCodeOf<Tile> != Element::kNone) {
    const uint32 address = tile + Tile::offset(row, step) + static_cast<uint32>(place * 4);
    widen<kCodeOf<Tile>>(bits_of_float(load_shared(address)), values);
  } else {
    load_shared(values, tile + Tile::offset(row, step * 4 + place));
  }
}

/// One element of values, which may be codes.
template <class Tile>
FLASHTILE_DEVICE float load_one(uint32 tile, int row, int col) {
  if constexpr (kCodeOf<Tile> != Element::kNone) {
    const uint32 address =
        tile + Tile::offset(row, col / 16) + static_cast<uint32>(col % 16 / 4 * 4);
    return float_of_code<kCodeOf<Tile>>(bits_of_float(load_shared(address)) >> (col % 4 * 8));
  } else {
    return load_shared(tile + Tile::offset(row, 0) + static_cast<uint32>(col * 4));
  }
}

/// acc += rows . columns', as multiply_rows of 16-bit elements.
template <int kTilesM, int kN, int kCols, class RowsTile, class ColumnsTile, bool kSwapped = false>
FLASHTILE_DEVICE void multiply_float_rows(float (&acc)[kTilesM][kN / 8][4], uint32 rows_tile,
                                          int first_row, uint32 columns_tile, int first_column) {
  const int lane = fresh(lane_idx());
  const int group = lane / 4;
  const int place = lane % 4;
  constexpr int kSteps = kCols / 16;
  constexpr int kStepsAtOnce = kFlushColumns / 16;
  // Many columns are a loop, for the sake of the text.
  constexpr int kUnrolled = kCols > 128 ? 1 : (kSteps + kStepsAtOnce - 1) / kStepsAtOnce;
#pragma unroll kUnrolled
  for (int begin = 0; begin < kSteps; begin += kStepsAtOnce) {
    float part[kTilesM][kN / 8][4] = {};
    FLASHTILE_UNROLL
    for (int s = 0; s < kStepsAtOnce; ++s) {
      const int step = begin + s;
      if (kSteps % kStepsAtOnce != 0 && step >= kSteps) break;
      float a[kTilesM][2][4];
      FLASHTILE_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        FLASHTILE_UNROLL
        for (int half = 0; half < 2; ++half) {
          load_shared(a[m][half],
                      rows_tile + RowsTile::offset(first_row + m * 16 + half * 8 + group,
                                                   step * 4 + place));
        }
      }
      FLASHTILE_UNROLL
      for (int n = 0; n < kN / 8; ++n) {
        float b[4];
        load_four<ColumnsTile>(b, columns_tile, first_column + n * 8 + group, step, place);
        FLASHTILE_UNROLL
        for (int pair = 0; pair < 2; ++pair) {
          const SplitFloat b0(b[2 * pair]);
          const SplitFloat b1(b[2 * pair + 1]);
          FLASHTILE_UNROLL
          for (int m = 0; m < kTilesM; ++m) {
            const SplitLeft left(a[m][0][2 * pair], a[m][1][2 * pair], a[m][0][2 * pair + 1],
                                 a[m][1][2 * pair + 1]);
            multiply_split<kSwapped>(part[m][n], left, b0, b1);
          }
        }
      }
    }
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      FLASHTILE_UNROLL
      for (int n = 0; n < kN / 8; ++n) {
        FLASHTILE_UNROLL
        for (int r = 0; r < 4; ++r) acc[m][n][r] += part[m][n][r];
      }
    }
  }
}

/// Probabilities as they come out of the accumulator.
template <int kTilesM, int kN>
struct FloatWeights {
  float values[kTilesM][kN / 8][4];

  FLASHTILE_DEVICE void set(const float (&p)[kTilesM][kN / 8][4]) {
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      FLASHTILE_UNROLL
      for (int n = 0; n < kN / 8; ++n) {
        FLASHTILE_UNROLL
        for (int r = 0; r < 4; ++r) values[m][n][r] = p[m][n][r];
      }
    }
  }
};

/// acc += weights . values, as multiply_values of 16-bit elements; kN is at most kFlushColumns.
template <int kTilesM, int kTilesV, int kN, int kCols, class ValuesTile>
FLASHTILE_DEVICE void multiply_float_values(float (&acc)[kTilesM][kTilesV][4],
                                            const FloatWeights<kTilesM, kN>& weights,
                                            uint32 values_tile, int first_key, int first_tile) {
  const int lane = fresh(lane_idx());
  static_assert(kN <= kFlushColumns, "sums of tensor cores are short");
  const int group = lane / 4;
  const int place = lane % 4;
  FLASHTILE_UNROLL
  for (int n = 0; n < kCols / 8; ++n) {
    float part[kTilesM][4] = {};
    FLASHTILE_UNROLL
    for (int step = 0; step < kN / 8; ++step) {
      const int key = first_key + 2 * place + step * 8;
      const SplitFloat b0(load_one<ValuesTile>(values_tile, key, n * 8 + group));
      const SplitFloat b1(load_one<ValuesTile>(values_tile, key + 1, n * 8 + group));
      FLASHTILE_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        const float(&p)[4] = weights.values[m][step];
        multiply_split(part[m], SplitLeft(p[0], p[2], p[1], p[3]), b0, b1);
      }
    }
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      FLASHTILE_UNROLL
      for (int r = 0; r < 4; ++r) acc[m][first_tile + n][r] += part[m][r];
    }
  }
}

}  // namespace flashtile::device
