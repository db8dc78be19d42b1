// SPDX-License-Identifier: Apache-2.0
//
// Products of a warp on 16-bit elements: m16n8k16 on fragments that ldmatrix reads from swizzled
// tiles. A warp owns kTilesM x 16 rows; each fragment of keys or values serves all of them, which
// is what keeps shared memory from being the limit.
#pragma once

#include "cuda/device/copy/shared_tile.cuh"
#include "cuda/device/ptx/mma.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

/// Offsets of a lane in a SwizzledTile. The swizzle of a lane's row is fixed, so that step i of a
/// group is the address XOR 32 i.
struct HalfLane {
  /// For 16x16 fragments whose rows are those of the tile: queries; values, transposed.
  FLASHTILE_DEVICE static uint32 rows() {
    const int lane = fresh(lane_idx());
    return static_cast<uint32>((lane % 16) * 128 + (((lane / 16) ^ (lane % 8)) * 16));
  }
  /// For two 8x16 fragments: sixteen keys.
  FLASHTILE_DEVICE static uint32 columns() {
    const int lane = fresh(lane_idx());
    return static_cast<uint32>((lane % 8 + lane / 16 * 8) * 128 +
                               ((((lane / 8) % 2) ^ (lane % 8)) * 16));
  }
};

/// The address of 16-column step `step` behind a lane's base.
template <int kGroupBytes>
FLASHTILE_DEVICE uint32 step_address(uint32 base, int step) {
  return (base ^ static_cast<uint32>((step % 4) * 32)) +
         static_cast<uint32>(step / 4 * kGroupBytes);
}

/// Fragments of 16 kTilesM rows of a tile and sixteen of its columns; `base` is that of a lane.
template <class SharedTile, int kTilesM>
FLASHTILE_DEVICE void load_row_fragments(uint32 (&a)[kTilesM][4], uint32 base, int step) {
  FLASHTILE_UNROLL
  for (int m = 0; m < kTilesM; ++m) {
    load_matrices(a[m], step_address<SharedTile::kGroupBytes>(base, step) +
                            static_cast<uint32>(m * 16 * 128));
  }
}

/// Rows of a tile as the left side of products over its kCols columns, kept in registers.
template <int kTilesM, int kCols>
struct HalfRows {
  uint32 fragments[kCols / 16][kTilesM][4];

  template <class SharedTile>
  FLASHTILE_DEVICE void load(uint32 tile, int first_row) {
    const uint32 base = tile + HalfLane::rows() + static_cast<uint32>(first_row * 128);
    FLASHTILE_UNROLL
    for (int step = 0; step < kCols / 16; ++step) {
      load_row_fragments<SharedTile>(fragments[step], base, step);
    }
  }
};

/// What HalfRows has of one step, or with kInRegisters what `held` has.
template <bool kInRegisters, class RowsTile, int kTilesM, int kCols>
FLASHTILE_DEVICE void take_rows(uint32 (&a)[kTilesM][4], const HalfRows<kTilesM, kCols>& held,
                                uint32 rows_base, int step) {
  if constexpr (kInRegisters) {
    FLASHTILE_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      FLASHTILE_UNROLL
      for (int r = 0; r < 4; ++r) a[m][r] = held.fragments[step][m][r];
    }
  } else {
    load_row_fragments<RowsTile>(a, rows_base, step);
  }
}

/// acc += rows . columns', both read along kCols columns of their tiles: rows [first_row, +16
/// kTilesM) of one, kN rows of the other from `first_column` on. With kInRegisters the rows are
/// `held`.
template <Element element, int kTilesM, int kN, int kCols, bool kInRegisters, class RowsTile,
          class ColumnsTile>
FLASHTILE_DEVICE void multiply_rows(float (&acc)[kTilesM][kN / 8][4],
                                    const HalfRows<kTilesM, kCols>& held, uint32 rows_tile,
                                    int first_row, uint32 columns_tile, int first_column) {
  const uint32 rows_base = rows_tile + HalfLane::rows() + static_cast<uint32>(first_row * 128);
  const uint32 columns_base =
      columns_tile + HalfLane::columns() + static_cast<uint32>(first_column * 128);
  FLASHTILE_UNROLL
  for (int step = 0; step < kCols / 16; ++step) {
    uint32 a[kTilesM][4];
    take_rows<kInRegisters, RowsTile>(a, held, rows_base, step);
    FLASHTILE_UNROLL
    for (int n = 0; n < kN / 16; ++n) {
      uint32 b[4];
      load_matrices(b, step_address<ColumnsTile::kGroupBytes>(columns_base, step) +
                           static_cast<uint32>(n * 16 * 128));
      FLASHTILE_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        mma_16x8x16<element>(acc[m][2 * n], a[m], b[0], b[1]);
        mma_16x8x16<element>(acc[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// Probabilities as the left side of their product with values: an accumulator's columns are just
/// those that the lane needs of a fragment.
template <Element element, int kTilesM, int kN>
struct HalfWeights {
  uint32 fragments[kN / 16][kTilesM][4];

  FLASHTILE_DEVICE void set(const float (&p)[kTilesM][kN / 8][4]) {
    FLASHTILE_UNROLL
    for (int step = 0; step < kN / 16; ++step) {
      FLASHTILE_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        FLASHTILE_UNROLL
        for (int r = 0; r < 4; ++r) {
          const float(&pair)[4] = p[m][2 * step + r / 2];
          fragments[step][m][r] = pack<element>(pair[2 * (r % 2)], pair[2 * (r % 2) + 1]);
        }
      }
    }
  }
};

/// acc += weights . values, for kN keys from `first_key` on and kCols columns of values, which are
/// those of the accumulator from tile `first_tile` on.
template <Element element, int kTilesM, int kTilesV, int kN, int kCols, class ValuesTile>
FLASHTILE_DEVICE void multiply_values(float (&acc)[kTilesM][kTilesV][4],
                                      const HalfWeights<element, kTilesM, kN>& weights,
                                      uint32 values_tile, int first_key, int first_tile) {
  const uint32 base = values_tile + HalfLane::rows() + static_cast<uint32>(first_key * 128);
  FLASHTILE_UNROLL
  for (int step = 0; step < kN / 16; ++step) {
    FLASHTILE_UNROLL
    for (int n = 0; n < kCols / 16; ++n) {
      uint32 b[4];
      load_matrices_transposed(
          b, step_address<ValuesTile::kGroupBytes>(base, n) + static_cast<uint32>(step * 16 * 128));
      FLASHTILE_UNROLL
      for (int m = 0; m < kTilesM; ++m) {
        const uint32(&a)[4] = weights.fragments[step][m];
        mma_16x8x16<element>(acc[m][first_tile + 2 * n], a, b[0], b[1]);
        mma_16x8x16<element>(acc[m][first_tile + 2 * n + 1], a, b[2], b[3]);
      }
    }
  }
}

}  // namespace flashtile::device
