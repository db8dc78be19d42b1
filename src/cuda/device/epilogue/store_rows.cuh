// SPDX-License-Identifier: Apache-2.0
//
// Accumulator rows to global memory.
#pragma once

#include "cuda/device/copy/rows.cuh"
#include "cuda/device/copy/shared_tile.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

/// The first of the two columns that a lane has in tile v of an accumulator. kInFours: products of
/// values of 8 bits (mma/code_operands.cuh).
template <bool kInFours>
FLASHTILE_DEVICE int lane_column(int v) {
  return kInFours ? v / 2 * 16 + lane_idx() % 4 * 4 + v % 2 * 2 : v * 8 + lane_idx() % 4 * 2;
}

/// Writes a lane's elements one by one. `address(row)` gives where a row of the tile begins, null
/// for one that is not there.
template <Element element, bool kInFours, int kTilesM, int kTilesV, class RowAddress>
FLASHTILE_DEVICE void store_elements(const float (&acc)[kTilesM][kTilesV][4], int warp_row,
                                     int num_cols, int64 element_stride,
                                     const RowAddress& address) {
  FLASHTILE_UNROLL
  for (int m = 0; m < kTilesM; ++m) {
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      char* row = address(warp_row + m * 16 + half * 8 + lane_idx() / 4);
      if (row == nullptr) continue;
      FLASHTILE_UNROLL
      for (int v = 0; v < kTilesV; ++v) {
        FLASHTILE_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int col = lane_column<kInFours>(v) + e;
          if (col < num_cols) {
            store_element<element>(row + col * element_stride, acc[m][v][half * 2 + e]);
          }
        }
      }
    }
  }
}

/// float32 rows of neighbouring elements that are aligned to 8 bytes: the four lanes of a row write
/// whole sectors as they stand.
template <bool kInFours, int kTilesM, int kTilesV, class RowAddress>
FLASHTILE_DEVICE void store_float_pairs(const float (&acc)[kTilesM][kTilesV][4], int warp_row,
                                        int num_cols, const RowAddress& address) {
  FLASHTILE_UNROLL
  for (int m = 0; m < kTilesM; ++m) {
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      char* row = address(warp_row + m * 16 + half * 8 + lane_idx() / 4);
      if (row == nullptr) continue;
      FLASHTILE_UNROLL
      for (int v = 0; v < kTilesV; ++v) {
        const int col = lane_column<kInFours>(v);
        const float x = acc[m][v][half * 2];
        const float y = acc[m][v][half * 2 + 1];
        store_global_if(col + 1 < num_cols, reinterpret_cast<FloatPair*>(row + col * 4), {x, y});
        store_global_if(col + 1 == num_cols, reinterpret_cast<float*>(row + col * 4), x);
      }
    }
  }
}

/// Columns col to col + 3 of a row, of which `num_cols` are there. kIsVector: neighbours, and rows
/// aligned to 8 bytes.
template <Element element, bool kIsVector>
FLASHTILE_DEVICE void store_quad(void* row, int col, int num_cols, int64 element_stride,
                                 const float (&value)[4]) {
  char* target = static_cast<char*>(row) + col * element_stride;
  if (kIsVector && col + 4 <= num_cols) {
    if constexpr (element == Element::kF32) {
      *reinterpret_cast<FloatPair*>(target) = {value[0], value[1]};
      *reinterpret_cast<FloatPair*>(target + 8) = {value[2], value[3]};
    } else {
      *reinterpret_cast<WordPair*>(target) = {pack<element>(value[0], value[1]),
                                              pack<element>(value[2], value[3])};
    }
    return;
  }
  FLASHTILE_UNROLL
  for (int e = 0; e < 4; ++e) {
    if (col + e < num_cols) store_element<element>(target + e * element_stride, value[e]);
  }
}

/// Puts 16-bit elements into a warp's own rows of a swizzled tile of kRows rows.
template <Element element, int kRows, bool kInFours, int kTilesM, int kTilesV>
FLASHTILE_DEVICE void stage_rows(const float (&acc)[kTilesM][kTilesV][4], uint32 tile,
                                 int warp_row) {
  using Staging = SwizzledTile<kRows, kTilesV * 8>;
  const int lane = lane_idx();
  const auto place = [&](int row, int v) -> uint32 {
    if constexpr (kInFours) {
      return Staging::offset(row, v / 2 * 2 + lane % 4 / 2) +
             static_cast<uint32>(lane % 2 * 8 + v % 2 * 4);
    }
    return Staging::offset(row, v) + static_cast<uint32>(lane % 4 * 4);
  };
  FLASHTILE_UNROLL
  for (int m = 0; m < kTilesM; ++m) {
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + m * 16 + half * 8 + lane / 4;
      FLASHTILE_UNROLL
      for (int v = 0; v < kTilesV; ++v) {
        store_shared(tile + place(row, v),
                     pack<element>(acc[m][v][half * 2], acc[m][v][half * 2 + 1]));
      }
    }
  }
  sync_warp();
}

/// Writes what stage_rows has left, where rows are aligned to 16 bytes and their elements are
/// neighbours. `address(row)` gives where a row of the tile begins, null for one that is not there.
template <int kRows, int kTilesM, int kTilesV, class RowAddress>
FLASHTILE_DEVICE void store_staged(uint32 tile, int warp_row, int num_cols,
                                   const RowAddress& address) {
  using Staging = SwizzledTile<kRows, kTilesV * 8>;
  const int lane = lane_idx();
  FLASHTILE_NO_UNROLL
  for (int i = 0; i < kTilesM * 4; ++i) {
    const int row = warp_row + i * 4 + lane / 8;
    char* target = address(row);
    if (target == nullptr) continue;
    FLASHTILE_UNROLL
    for (int group = 0; group < (kTilesV + 7) / 8; ++group) {
      const int chunk = group * 8 + lane % 8;
      if (chunk * 8 >= num_cols) continue;
      const Vector4 value = load_shared_vector(tile + Staging::offset(row, chunk));
      if (chunk * 8 + 8 <= num_cols) {
        *reinterpret_cast<Vector4*>(target + chunk * 16) = value;
        continue;
      }
      const uint32 words[4] = {value.x, value.y, value.z, value.w};
      FLASHTILE_UNROLL
      for (int e = 0; e < 8; ++e) {
        if (chunk * 8 + e >= num_cols) continue;
        *reinterpret_cast<uint16*>(target + chunk * 16 + e * 2) =
            static_cast<uint16>(words[e / 2] >> (e % 2 * 16));
      }
    }
  }
}

/// The same for whole rows at a constant distance: `first` is where row 0 of the tile goes, and
/// `num_rows` of its rows are there.
template <int kRows, int kTilesM, int kTilesV>
FLASHTILE_DEVICE void store_staged_whole(uint32 tile, int warp_row, char* first, int64 row_stride,
                                         int num_rows) {
  using Staging = SwizzledTile<kRows, kTilesV * 8>;
  constexpr uint32 kGroupStep = Staging::offset(0u, 8u);
  const uint32 lane = static_cast<uint32>(lane_idx());
  int row = warp_row + static_cast<int>(lane / 8);
  char* target = first + row * row_stride + lane % 8 * 16;
  FLASHTILE_UNROLL
  for (int i = 0; i < kTilesM * 4; ++i) {
    if (row < num_rows) {
      const uint32 source = tile + Staging::offset(static_cast<uint32>(row), lane % 8);
      FLASHTILE_UNROLL
      for (uint32 group = 0; group < (kTilesV + 7) / 8; ++group) {
        if (group * 8 + 7 >= kTilesV && group * 8 + lane % 8 >= kTilesV) continue;
        *reinterpret_cast<Vector4*>(target + group * 128) =
            load_shared_vector(source + group * kGroupStep);
      }
    }
    row += 4;
    target += 4 * row_stride;
  }
}

}  // namespace flashtile::device
