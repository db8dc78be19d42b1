// SPDX-License-Identifier: Apache-2.0
//
// How tiles lie in shared memory, so that whole rows are written and fragments are read without
// bank conflicts. A chunk is 16 bytes of a row.
#pragma once

#include "cuda/device/params/shared_bytes.hpp"
#include "cuda/device/ptx/convert.cuh"

namespace flashtile::device {

/// 16-bit elements: groups of 64 columns one after the other, each kRows x 128 bytes, in which the
/// chunk index is XORed with the row modulo 8. Begins at a multiple of 128 bytes.
template <int kRows, int kCols>
struct SwizzledTile {
  static constexpr int kGroupBytes = kRows * 128;
  static constexpr int kBytes = swizzled_tile_bytes(kRows, kCols);

  FLASHTILE_DEVICE static constexpr uint32 offset(uint32 row, uint32 chunk) {
    return (chunk / 8) * kGroupBytes + row * 128 + (((chunk % 8) ^ (row % 8)) * 16);
  }
};

/// Four-byte elements, rows kPitch bytes apart.
template <int kRows, int kPitch>
struct PitchedTile {
  static constexpr int kBytes = pitched_tile_bytes(kRows, kPitch);

  FLASHTILE_DEVICE static constexpr uint32 offset(uint32 row, uint32 chunk) {
    return row * kPitch + chunk * 16;
  }
};

/// The tile that queries and keys (whose rows are read along the reduction) lie in.
template <Element element, int kRows, int kCols>
struct RowTileOf {
  using Type = SwizzledTile<kRows, kCols>;
};
template <int kRows, int kCols>
struct RowTileOf<Element::kF32, kRows, kCols> {
  using Type = PitchedTile<kRows, vector_pitch(kCols)>;
};

/// The tile that values (whose columns are read along the reduction) lie in.
template <Element element, int kRows, int kCols>
struct ColumnTileOf {
  using Type = SwizzledTile<kRows, kCols>;
};
template <int kRows, int kCols>
struct ColumnTileOf<Element::kF32, kRows, kCols> {
  using Type = PitchedTile<kRows, column_pitch(kCols)>;
};

template <Element element, int kRows, int kCols>
using RowTile = typename RowTileOf<element, kRows, kCols>::Type;
template <Element element, int kRows, int kCols>
using ColumnTile = typename ColumnTileOf<element, kRows, kCols>::Type;

}  // namespace flashtile::device
