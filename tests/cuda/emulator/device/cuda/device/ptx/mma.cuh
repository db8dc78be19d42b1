// SPDX-License-Identifier: Apache-2.0
//
// src/cuda/device/ptx/mma.cuh for the emulated GPU. Sums are rounded once, which real ones are not.
#pragma once

#include "cuda/device/ptx/convert.cuh"

namespace flashtile::device {

struct MmaOperands {
  uint32 a[4];
  uint32 b[2];
};

template <Element element>
float half_of(uint32 pair, int idx) {
  return from_bits<element>(static_cast<uint16>(pair >> (16 * idx)));
}

template <Element element>
void mma_16x8x16(float (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
  const MmaOperands own = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const char* slots = emulator::exchange(&own, sizeof own);
  const int group = lane_idx() / 4;
  const int place = lane_idx() % 4;
  double sums[4] = {d[0], d[1], d[2], d[3]};
  for (int k = 0; k < 16; ++k) {
    const int high = k / 8;
    const auto left = value_of_lane<MmaOperands>(slots, group * 4 + k % 8 / 2);
    for (int e = 0; e < 2; ++e) {
      const auto right = value_of_lane<MmaOperands>(slots, (place * 2 + e) * 4 + k % 8 / 2);
      const double b = half_of<element>(right.b[high], k % 2);
      sums[e] += half_of<element>(left.a[2 * high], k % 2) * b;
      sums[2 + e] += half_of<element>(left.a[2 * high + 1], k % 2) * b;
    }
  }
  for (int r = 0; r < 4; ++r) d[r] = static_cast<float>(sums[r]);
}

inline void mma_16x8x8_tf32(float (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
  const MmaOperands own = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const char* slots = emulator::exchange(&own, sizeof own);
  const int group = lane_idx() / 4;
  const int place = lane_idx() % 4;
  const auto number = [](uint32 bits) {
    return static_cast<double>(float_from_bits(bits & 0xffffe000u));
  };
  double sums[4] = {d[0], d[1], d[2], d[3]};
  for (int k = 0; k < 8; ++k) {
    const int high = k / 4;
    const auto left = value_of_lane<MmaOperands>(slots, group * 4 + k % 4);
    for (int e = 0; e < 2; ++e) {
      const auto right = value_of_lane<MmaOperands>(slots, (place * 2 + e) * 4 + k % 4);
      sums[e] += number(left.a[2 * high]) * number(right.b[high]);
      sums[2 + e] += number(left.a[2 * high + 1]) * number(right.b[high]);
    }
  }
  for (int r = 0; r < 4; ++r) d[r] = static_cast<float>(sums[r]);
}

}  // namespace flashtile::device
