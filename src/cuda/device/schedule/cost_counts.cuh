// SPDX-License-Identifier: Apache-2.0
//
// Sorting by counting: how many pieces of work have each cost, and from there where each one goes.
#pragma once

#include "cuda/device/params/attention_params.hpp"
#include "cuda/device/ptx/exchange.cuh"
#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

/// The cost of a number, the larger the less: sixteen for each power of two.
FLASHTILE_DEVICE int cost_of(uint32 number) {
  const int exponent = 31 - leading_zeros(number | 1u);
  const int place = exponent < 4
                        ? static_cast<int>(number)
                        : (exponent - 3) * 16 + static_cast<int>(number >> (exponent - 4) & 15);
  constexpr int kLast = CostCounts::kNumCosts - 1;
  return kLast - (place < kLast ? place : kLast);
}

/// What it takes to visit the blocks of a map's row, in full blocks: one that masks cut counts as
/// three. Of words first, first + step, ...
FLASHTILE_DEVICE uint32 visits_of(const uint32* row, int num_words, int first, int step) {
  constexpr uint32 kVisited = 0x55555555u;  // the lower of a block's two bits
  uint32 sum = 0;
  for (int i = first; i < num_words; i += step) {
    const auto word = static_cast<uint32>(load_fresh(reinterpret_cast<const int*>(row) + i));
    sum +=
        static_cast<uint32>(3 * count_ones(word & kVisited) - 2 * count_ones(word >> 1 & kVisited));
  }
  return sum;
}

/// Numbers of blocks of each cost become the places of the first of them; by one warp. Gives how
/// many there are.
FLASHTILE_DEVICE uint32 sum_up(uint32* counts) {
  constexpr int kOwn = CostCounts::kNumCosts / kWarpSize;
  uint32* own = counts + lane_idx() * kOwn;
  uint32 sum = 0;
  for (int i = 0; i < kOwn; ++i) sum += own[i];
  uint32 end = sum;
  for (int step = 1; step < kWarpSize; step *= 2) {
    const uint32 before = shuffle(end, lane_idx() < step ? 0 : lane_idx() - step);
    if (lane_idx() >= step) end += before;
  }
  uint32 place = end - sum;
  for (int i = 0; i < kOwn; ++i) {
    const uint32 count = own[i];
    own[i] = place;
    place += count;
  }
  return shuffle(end, kWarpSize - 1);
}

}  // namespace flashtile::device
