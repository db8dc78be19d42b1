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
    if constexpr (element_bytes(element) == 1) {
      words[e] = 0;
      FLASHTILE_UNROLL
      for (int byte = 0; byte < 4; ++byte) {
        const int index = 4 * e + byte;
        const char* address = row + (first + index) * element_stride;
        const uint32 code =
            index < count ? load_global(reinterpret_cast<const unsigned char*>(address)) : 0u;
        words[e] |= code << (8 * byte);
      }
    } else if constexpr (element == Element::kF32) {
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
/// for the loads. Eight neighbouring threads copy 128 bytes of a row. kThreads threads do it, from
/// kFirstThread on.
template <Element element, class SharedTile, int kRows, int kCols, int kThreads, int kCopyBytes,
          int kFirstThread = 0>
struct TileCopy {
  static constexpr int kElementBytes = element_bytes(element);
  static constexpr int kElements = 16 / kElementBytes;  ///< of a chunk
  static constexpr int kChunks = kCols / kElements;
  static constexpr int kNumRows = kRows;
  static constexpr int kRowsAtOnce = kThreads / 8;
  static constexpr int kSteps = (kRows + kRowsAtOnce - 1) / kRowsAtOnce;

  FLASHTILE_DEVICE static int thread() { return fresh(thread_idx()) - kFirstThread; }
  FLASHTILE_DEVICE static int first_row() { return thread() / 8; }
  FLASHTILE_DEVICE static int first_chunk() { return thread() % 8; }

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
        const Vector4 value =
            gather_chunk<element>(source, element_stride, chunk * kElements, count);
        if constexpr (kIsPaired<SharedTile>) {
          const uint32 pairs[4] = {value.x, value.y, value.z, value.w};
          FLASHTILE_UNROLL
          for (int pair = 0; pair < 4; ++pair) {
            store_shared(tile + SharedTile::pair_offset(row, chunk, pair), pairs[pair]);
          }
        } else {
          store_shared(target, value);
        }
      } else {
        FLASHTILE_UNROLL
        for (int piece = 0; piece < 16 / kCopyBytes; ++piece) {
          const int bytes = count * kElementBytes - piece * kCopyBytes;
          uint32 place = target + static_cast<uint32>(piece * kCopyBytes);
          if constexpr (kIsPaired<SharedTile>) {
            static_assert(kCopyBytes == 4, "pairs go to places of their own");
            place = tile + SharedTile::pair_offset(row, chunk, piece);
          }
          copy_async<kCopyBytes>(place, source + chunk * 16 + piece * kCopyBytes,
                                 bytes < 0            ? 0
                                 : bytes < kCopyBytes ? bytes
                                                      : kCopyBytes);
        }
      }
    }
  }

  /// Starts copying all rows; `address(row, step)` gives where they are: a thread has a row in each
  /// of kSteps steps. kHasWhole: whole rows have a text of their own, which takes fewer steps.
  template <bool kHasWhole = false, class Address>
  FLASHTILE_DEVICE static void copy(uint32 tile, int num_cols, int64 element_stride,
                                    const Address& address) {
    if (kHasWhole && kStepsAreEven && num_cols >= kCols) {
      copy_rows<false>(tile, num_cols, element_stride, address);
    } else {
      copy_rows<true>(tile, num_cols, element_stride, address);
    }
  }

  /// The same for rows at a constant distance: `source` is the address of row first_row(). Written
  /// out for few instructions, because the inner loops of kernels copy this way.
  FLASHTILE_DEVICE static void copy_strided(uint32 tile, int num_cols, int64 element_stride,
                                            const char* source, int64 row_stride) {
    const int64 step = kRowsAtOnce * row_stride;
    if constexpr (!kStepsAreEven) {
      FLASHTILE_UNROLL
      for (int i = 0; i < kSteps; ++i) {
        const int row = first_row() + i * kRowsAtOnce;
        if (!kIsEven && row >= kRows) break;
        copy_row(tile, row, source, num_cols, element_stride);
        source += step;
      }
    } else {
      const Place place(tile);
      source += place.chunk * 16;
      if (num_cols >= kCols) {
        copy_steps<false>(place, source, step, num_cols);
      } else {
        copy_steps<true>(place, source, step, num_cols);
      }
    }
  }

 private:
  /// From one of a thread's rows to the next, the place in a tile moves by a constant.
  static constexpr bool kStepsAreEven = kCopyBytes == 16 && kRowsAtOnce % 8 == 0;
  static constexpr bool kIsEven = kRows % kRowsAtOnce == 0;

  /// What a thread copies: chunks `chunk`, chunk + 8, ... of rows `row`, row + kRowsAtOnce, ...
  struct Place {
    int row, chunk;
    uint32 target;

    FLASHTILE_DEVICE explicit Place(uint32 tile) {
      const uint32 own = static_cast<uint32>(thread());
      row = static_cast<int>(own / 8);
      chunk = static_cast<int>(own % 8);
      target = tile + SharedTile::offset(own / 8, own % 8);
    }
  };

  /// The chunks of one row; the last ones may be cut short or empty where kIsCut.
  template <bool kIsCut>
  FLASHTILE_DEVICE static void copy_chunks(const Place& place, int step, const char* source,
                                           int num_cols) {
    constexpr uint32 kRowStep = SharedTile::offset(kRowsAtOnce, 0u);
    constexpr uint32 kGroupStep = SharedTile::offset(0u, 8u);
    FLASHTILE_UNROLL
    for (int group = 0; group < (kChunks + 7) / 8; ++group) {
      const int chunk = place.chunk + group * 8;
      if (group * 8 + 7 >= kChunks && chunk >= kChunks) break;
      const uint32 target = place.target + static_cast<uint32>(step) * kRowStep +
                            static_cast<uint32>(group) * kGroupStep;
      if constexpr (kIsCut) {
        const int bytes = (num_cols - chunk * kElements) * kElementBytes;
        copy_async<16>(target, source + group * 128, bytes < 0 ? 0 : bytes < 16 ? bytes : 16);
      } else {
        copy_async_whole(target, source + group * 128);
      }
    }
  }

  template <bool kIsCut, class Address>
  FLASHTILE_DEVICE static void copy_rows(uint32 tile, int num_cols, int64 element_stride,
                                         const Address& address) {
    const Place place(tile);
    FLASHTILE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int row = place.row + step * kRowsAtOnce;
      if (!kIsEven && row >= kRows) break;
      const char* source = address(row, step);
      if constexpr (kStepsAreEven) {
        copy_chunks<kIsCut>(place, step, source + place.chunk * 16, num_cols);
      } else {
        copy_row(tile, row, source, num_cols, element_stride);
      }
    }
  }

  /// A loop where rows are cut, for the sake of the text.
  template <bool kIsCut>
  FLASHTILE_DEVICE static void copy_steps(const Place& place, const char* source, int64 step,
                                          int num_cols) {
#pragma unroll kIsCut ? 1 : kSteps
    for (int i = 0; i < kSteps; ++i) {
      if (!kIsEven && place.row + i * kRowsAtOnce >= kRows) break;
      copy_chunks<kIsCut>(place, i, source, num_cols);
      source += step;
    }
  }

 public:
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
