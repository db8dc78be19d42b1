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

/// Codes of 8 bits, two of which lie like one element of 16.
template <Element code, int kRows, int kCols>
struct CodeTile : SwizzledTile<kRows, kCols / 2> {};

/// Codes that a tile holds; kNone: it holds elements.
template <class Tile>
constexpr Element kCodeOf = Element::kNone;
template <Element code, int kRows, int kCols>
constexpr Element kCodeOf<CodeTile<code, kRows, kCols>> = code;

/// Queries that meet codes: of each 16 columns the pairs lie in the order 0 2 4 6 1 3 5 7. Then
/// four neighbouring codes of a key are what a lane multiplies by two registers of a fragment.
template <int kRows, int kCols>
struct PairedTile : SwizzledTile<kRows, kCols> {
  /// Where pair `pair` of a chunk goes.
  FLASHTILE_DEVICE static constexpr uint32 pair_offset(uint32 row, uint32 chunk, uint32 pair) {
    return SwizzledTile<kRows, kCols>::offset(row, chunk / 2 * 2 + pair % 2) +
           (chunk % 2 * 2 + pair / 2) * 4;
  }
};
template <class Tile>
constexpr bool kIsPaired = false;
template <int kRows, int kCols>
constexpr bool kIsPaired<PairedTile<kRows, kCols>> = true;

/// The tile that elements lie in; rows of float32 are kPitch bytes apart.
template <Element element, int kRows, int kCols, int kPitch>
struct TileOf {
  using Type = SwizzledTile<kRows, kCols>;
};
template <int kRows, int kCols, int kPitch>
struct TileOf<Element::kF32, kRows, kCols, kPitch> {
  using Type = PitchedTile<kRows, kPitch>;
};
template <Element code, int kRows, int kCols, int kPitch>
requires(element_bytes(code) == 1) struct TileOf<code, kRows, kCols, kPitch> {
  using Type = CodeTile<code, kRows, kCols>;
};

/// For queries and keys, whose rows are read along the reduction.
template <Element element, int kRows, int kCols>
using RowTile = typename TileOf<element, kRows, kCols, vector_pitch(kCols)>::Type;
/// For values, whose columns are.
template <Element element, int kRows, int kCols>
using ColumnTile = typename TileOf<element, kRows, kCols, column_pitch(kCols)>::Type;

/// The tile that queries lie in, for keys of codes or not.
template <Element element, bool kMeetsCodes, int kRows, int kCols>
struct QueryTileOf {
  using Type = RowTile<element, kRows, kCols>;
};
template <Element element, int kRows, int kCols>
struct QueryTileOf<element, true, kRows, kCols> {
  using Type = PairedTile<kRows, kCols>;
};
template <int kRows, int kCols>
struct QueryTileOf<Element::kF32, true, kRows, kCols> {
  using Type = RowTile<Element::kF32, kRows, kCols>;
};

template <Element element, bool kMeetsCodes, int kRows, int kCols>
using TileOfQueries = typename QueryTileOf<element, kMeetsCodes, kRows, kCols>::Type;

}  // namespace flashtile::device
