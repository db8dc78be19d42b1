// SPDX-License-Identifier: Apache-2.0
//
// One number of all lanes of a warp, in every lane and in an order that is fixed.
#pragma once

#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

/// NaN only where all are.
FLASHTILE_DEVICE float highest_of_lanes(float value) {
  FLASHTILE_UNROLL
  for (int lane_mask = kWarpSize / 2; lane_mask > 0; lane_mask /= 2) {
    value = larger(value, shuffle_xor(value, lane_mask));
  }
  return value;
}

template <class T>
FLASHTILE_DEVICE T sum_of_lanes(T value) {
  FLASHTILE_UNROLL
  for (int lane_mask = kWarpSize / 2; lane_mask > 0; lane_mask /= 2) {
    value += shuffle_xor(value, lane_mask);
  }
  return value;
}

}  // namespace flashtile::device
