// SPDX-License-Identifier: Apache-2.0
//
// Rows of global memory into a tile of shared memory.
#pragma once

#include "cuda/device/copy/shared_tile.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

/// One chunk, element by element, for rows of any stride and alignment.
template <Element element>
FLASHTILE_DEVICE Vector4 gather_chunk(const char* row, int64 element_stride, int first, int count) {
  uint32 words[4];
  FLASHTILE_UNROLL
  for (int e = 0; e < 4; ++e) {
    if constexpr (element == Element::kF32) {
      const char* address = row + (first + e) * element_stride;
      words[e] = e < count ? load_global(reinterpret_cast<const uint32*>(address)) : 0u;
    } else {
      const char* address = row + (first + 2 * e) * element_stride;
      const auto half = [&](int index, const char* at) -> uint32 {
        return index < count ? load_global(reinterpret_cast<const uint16*>(at)) : uint16{0};
      };
      words[e] = half(2 * e, address) | half(2 * e + 1, address + element_stride) << 16;
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

/// Where a tile's rows come from and how they are copied. kCopyBytes: what addresses and strides
/// are aligned to, 16, 8 or 4 with neighbouring elements side by side; 0 for anything, which waits
/// for the loads. Eight neighbouring threads copy 128 bytes of a row.
template <Element element, class SharedTile, int kRows, int kCols, int kThreads, int kCopyBytes>
struct TileCopy {
  static constexpr int kElementBytes = element_bytes(element);
  static constexpr int kElements = 16 / kElementBytes;  ///< of a chunk
  static constexpr int kChunks = kCols / kElements;
  static constexpr int kNumRows = kRows;
  static constexpr int kRowsAtOnce = kThreads / 8;

  FLASHTILE_DEVICE static int first_row() { return fresh(thread_idx()) / 8; }
  FLASHTILE_DEVICE static int first_chunk() { return fresh(thread_idx()) % 8; }

  /// The chunks of one row that are this thread's; `num_cols` elements are there, zeros follow.
  FLASHTILE_DEVICE static void copy_row(uint32 tile, int row, const char* source, int num_cols,
                                        int64 element_stride) {
    FLASHTILE_UNROLL
    for (int group = 0; group < (kChunks + 7) / 8; ++group) {
      const int chunk = first_chunk() + group * 8;
      if (group * 8 + 7 >= kChunks && chunk >= kChunks) break;
      const uint32 target = tile + SharedTile::offset(row, chunk);
      const int count = num_cols - chunk * kElements;
      if constexpr (kCopyBytes == 0) {
        store_shared(target,
                     gather_chunk<element>(source, element_stride, chunk * kElements, count));
      } else {
        FLASHTILE_UNROLL
        for (int piece = 0; piece < 16 / kCopyBytes; ++piece) {
          const int bytes = count * kElementBytes - piece * kCopyBytes;
          copy_async<kCopyBytes>(target + static_cast<uint32>(piece * kCopyBytes),
                                 source + chunk * 16 + piece * kCopyBytes,
                                 bytes < 0            ? 0
                                 : bytes < kCopyBytes ? bytes
                                                      : kCopyBytes);
        }
      }
    }
  }

  /// Starts copying all rows; `address(row)` gives where they are.
  template <class Address>
  FLASHTILE_DEVICE static void copy(uint32 tile, int num_cols, int64 element_stride,
                                    const Address& address) {
    FLASHTILE_UNROLL
    for (int row = first_row(); row < kRows; row += kRowsAtOnce) {
      copy_row(tile, row, address(row), num_cols, element_stride);
    }
  }

  /// The same for rows at a constant distance: `source` is the address of row first_row().
  FLASHTILE_DEVICE static void copy_strided(uint32 tile, int num_cols, int64 element_stride,
                                            const char* source, int64 row_stride) {
    const int64 step = kRowsAtOnce * row_stride;
    FLASHTILE_UNROLL
    for (int i = 0; i < (kRows + kRowsAtOnce - 1) / kRowsAtOnce; ++i) {
      const int row = first_row() + i * kRowsAtOnce;
      if (kRows % kRowsAtOnce != 0 && row >= kRows) break;
      copy_row(tile, row, source, num_cols, element_stride);
      source += step;
    }
  }

  /// The same, with zeros for rows outside [begin, end), whose address is never asked for.
  template <class Address>
  FLASHTILE_DEVICE static void copy_range(uint32 tile, int num_cols, int64 element_stride,
                                          int begin, int end, const Address& address) {
    FLASHTILE_NO_UNROLL
    for (int row = first_row(); row < kRows; row += kRowsAtOnce) {
      const bool is_read = row >= begin && row < end;
      copy_row(tile, row, address(is_read ? row : begin), is_read ? num_cols : 0, element_stride);
    }
  }
};

}  // namespace flashtile::device
