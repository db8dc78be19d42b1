// SPDX-License-Identifier: Apache-2.0
//
// src/cuda/device/ptx/wgmma.cuh for the emulated GPU.
#pragma once

#include "cuda/device/ptx/convert.cuh"
#include "cuda/device/ptx/memory.cuh"
#include "cuda/device/ptx/mma.cuh"

namespace flashtile::device {

struct OperandAddress {
  uint32 low;

  static OperandAddress of_rows(uint32 address) { return {(address & 0x3ffffu) >> 4 | 1u << 16}; }
  static OperandAddress of_columns(uint32 address, uint32 chunk_bytes) {
    return {(address & 0x3ffffu) >> 4 | (chunk_bytes >> 4) << 16};
  }
  OperandAddress operator+(int bytes) const { return {low + static_cast<uint32>(bytes / 16)}; }
  uint64 descriptor() const { return 0x40000040ull << 32 | low; }
};

/// A swizzled operand, as the bits of its descriptor say.
struct MatrixOperand {
  uint32 start, leading, stride;

  explicit MatrixOperand(uint64 bits)
      : start(static_cast<uint32>(bits & 0x3fff) << 4),
        leading(static_cast<uint32>(bits >> 16 & 0x3fff) << 4),
        stride(static_cast<uint32>(bits >> 32 & 0x3fff) << 4) {
    if (bits >> 62 != 1 || (bits >> 49 & 7) != 0) emulator::stop("a descriptor is not swizzled");
  }
  static uint16 load(uint32 address) {
    return shared_value<uint16>(address ^ ((address >> 7 & 7) << 4));
  }
  /// Element k of a row whose elements lie side by side.
  uint16 by_row(int row, int k) const {
    return load(start + static_cast<uint32>(row / 8) * stride +
                static_cast<uint32>(row % 8 * 128 + k * 2));
  }
  /// Element k of a column; rows are the elements k of all columns.
  uint16 by_column(int column, int k) const {
    return load(start + static_cast<uint32>(column / 64) * leading +
                static_cast<uint32>(k / 8) * stride +
                static_cast<uint32>(k % 8 * 128 + column % 64 * 2));
  }
};

template <Element element, int kN>
struct WarpgroupProduct {
  /// Rows g and g + 8 of the lane's warp, 16 elements each.
  struct Rows {
    float a[2][16];
  };
  template <bool kBColumns>
  static void start(float (&d)[kN / 2], std::function<Rows()> rows, uint64 b, int adds) {
    emulator::start_product([&d, rows, b, adds] {
      const Rows own = rows();
      const MatrixOperand operand(b);
      const int place = lane_idx() % 4 * 2;
      for (int n = 0; n < kN / 8; ++n) {
        for (int e = 0; e < 2; ++e) {
          double sums[2] = {};
          for (int k = 0; k < 16; ++k) {
            const int column = n * 8 + place + e;
            const double factor = from_bits<element>(kBColumns ? operand.by_column(column, k)
                                                               : operand.by_row(column, k));
            sums[0] += own.a[0][k] * factor;
            sums[1] += own.a[1][k] * factor;
          }
          for (int half = 0; half < 2; ++half) {
            float& to = d[n * 4 + half * 2 + e];
            to = static_cast<float>((adds != 0 ? to : 0.0) + sums[half]);
          }
        }
      }
    });
  }
  static void shared(float (&d)[kN / 2], uint64 a, uint64 b, int adds) {
    const auto rows = [a] {
      const MatrixOperand operand(a);
      const int row = thread_idx() % 128 / 32 * 16 + lane_idx() / 4;
      Rows own;
      for (int half = 0; half < 2; ++half) {
        for (int k = 0; k < 16; ++k) {
          own.a[half][k] = from_bits<element>(operand.by_row(row + half * 8, k));
        }
      }
      return own;
    };
    start<false>(d, rows, b, adds);
  }
  template <int kBColumns>
  static void registers(float (&d)[kN / 2], uint32 a0, uint32 a1, uint32 a2, uint32 a3, uint64 b,
                        int adds) {
    const uint32 own[4] = {a0, a1, a2, a3};
    const char* slots = emulator::exchange(own, sizeof own);
    struct Fragment {
      uint32 a[4];
    };
    Rows rows;
    for (int k = 0; k < 16; ++k) {
      const auto from = value_of_lane<Fragment>(slots, lane_idx() / 4 * 4 + k % 8 / 2);
      for (int half = 0; half < 2; ++half) {
        rows.a[half][k] = half_of<element>(from.a[k / 8 * 2 + half], k % 2);
      }
    }
    start<kBColumns != 0>(
        d, [rows] { return rows; }, b, adds);
  }
};

}  // namespace flashtile::device
