// SPDX-License-Identifier: Apache-2.0
//
// Products of two tiles of shared memory that are summed over the rows of the right one, on 16-bit
// elements: what the backward needs besides half_operands.cuh. And the way of fragments to a tile.
#pragma once

#include "cuda/device/mma/half_operands.cuh"

namespace flashtile::device {

/// The address of step first + i behind a lane's base, i < kCount; `first` is a multiple of kCount.
template <int kGroupBytes, int kCount>
struct Steps {
  static constexpr bool kIsNested = kCount == 1 || kCount == 2 || kCount % 4 == 0;
  uint32 base;
  int first;

  FLASHTILE_DEVICE Steps(uint32 lane_base, int first_step)
      : base(kIsNested ? step_address<kGroupBytes>(lane_base, first_step) : lane_base),
        first(first_step) {}
  FLASHTILE_DEVICE uint32 address(int i, int skipped_rows) const {
    const int step = kIsNested ? i : first + i;
    return step_address<kGroupBytes>(base, step) + static_cast<uint32>(skipped_rows * 128);
  }
};

/// acc += left . right, summed over kSum rows of `right`; 16-bit elements. The rows of the result
/// are rows [first_row, + 16 kTilesM) of `left`, or with kTransposed its columns; its columns are
/// columns [16 first_step, + 8 kTilesN) of `right`. first_row is a multiple of 16 kTilesM.
template <Element element, bool kTransposed, int kTilesM, int kTilesN, int kSum, class LeftTile,
          class RightTile>
FLASHTILE_DEVICE void multiply_tiles(float (&acc)[kTilesM][kTilesN][4], uint32 left, int first_row,
                                     uint32 right, int first_step) {
  const Steps<RightTile::kGroupBytes, kTilesN / 2> columns(right + HalfLane::rows(), first_step);
  const Steps<LeftTile::kGroupBytes, kTilesM> rows(left + HalfLane::columns(), first_row / 16);
  const uint32 rows_base = left + HalfLane::rows() + static_cast<uint32>(first_row * 128);
  FLASHTILE_UNROLL
  for (int step = 0; step < kSum / 16; ++step) {
    uint32 a[kTilesM][4];
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      if constexpr (kTransposed) {
        load_matrices_transposed(a[m], rows.address(m, step * 16));
      } else {
        load_matrices(a[m], step_address<LeftTile::kGroupBytes>(rows_base, step) +
                                static_cast<uint32>(m * 16 * 128));
      }
    }
    FLASHTILE_UNROLL
    for (int n = 0; n < kTilesN / 2; ++n) {
      uint32 b[4];
      load_matrices_transposed(b, columns.address(n, step * 16));
      FLASHTILE_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        mma_16x8x16<element>(acc[m][2 * n], a[m], b[0], b[1]);
        mma_16x8x16<element>(acc[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// Writes fragments to rows [first_row, ...) and columns [first_column, + kN) of a tile.
template <class Tile, Element element, int kTilesM, int kN>
FLASHTILE_DEVICE void store_weights(uint32 tile, const HalfWeights<element, kTilesM, kN>& weights,
                                    int first_row, int first_column) {
  const int lane = fresh(lane_idx());
  FLASHTILE_UNROLL
  for (int step = 0; step < kN / 16; ++step) {
    const int chunk = first_column / 8 + step * 2;
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      const int row = first_row + m * 16;
      store_matrices(tile + Tile::offset(row + lane % 16, chunk + lane / 16),
                     weights.fragments[step][m], [&](int i) {
                       return tile + Tile::offset(row + i % 2 * 8 + lane / 4, chunk + i / 2) +
                              static_cast<uint32>(lane % 4 * 4);
                     });
    }
  }
}

}  // namespace flashtile::device
