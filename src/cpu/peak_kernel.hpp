// SPDX-License-Identifier: Apache-2.0
//
// The text of peak_<isa>.cpp: chains of dependent multiply-adds, enough of them side by side to
// keep all units busy, and a sum over memory.
#pragma once

#include "cpu/simd/simd.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Chains side by side: latency 4, two units, and some to spare; all of them fit into registers.
inline constexpr int kPeakChains = 12;

/// Runs num_rounds multiply-adds in each chain; returns something that depends on all of them, and
/// stores the number of floating-point operations.
float peak_f32(int64_t num_rounds, double* num_operations) {
  Vf sums[kPeakChains];
  for (int i = 0; i < kPeakChains; ++i) sums[i] = broadcast(static_cast<float>(i));
  // Values converge to 0.5 / (1 - 0.5): no subnormal or infinite number slows the units.
  const Vf factor = broadcast(0.5f), addend = broadcast(0.5f);
  for (int64_t round = 0; round < num_rounds; ++round) {
    FLASHTILE_UNROLL
    for (int i = 0; i < kPeakChains; ++i) sums[i] = fma(sums[i], factor, addend);
  }
  Vf total = sums[0];
  for (int i = 1; i < kPeakChains; ++i) total = total + sums[i];
  *num_operations = 2.0 * kPeakChains * kLanes * static_cast<double>(num_rounds);
  return reduce_add(total);
}

/// The sum of `count` floats, a multiple of 8 vectors, read from front to back.
float read_sum(const float* data, int64_t count) {
  constexpr int kVectors = 8;
  constexpr int64_t kAhead = 1024;  ///< floats: a page, where the processor's own prefetching stops
  Vf sums[kVectors];
  for (int i = 0; i < kVectors; ++i) sums[i] = zero();
  for (int64_t at = 0; at < count; at += kVectors * kLanes) {
    for (int64_t line = 0; line < kVectors * kLanes; line += 16) {
      __builtin_prefetch(data + at + kAhead + line, 0, 2);
    }
    FLASHTILE_UNROLL
    for (int i = 0; i < kVectors; ++i) sums[i] = sums[i] + load(data + at + i * kLanes);
  }
  Vf total = sums[0];
  for (int i = 1; i < kVectors; ++i) total = total + sums[i];
  return reduce_add(total);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
