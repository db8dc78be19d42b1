// SPDX-License-Identifier: Apache-2.0
//
// The text of peak_<isa>.cpp: chains of dependent multiply-adds, enough of them side by side to
// keep all units busy.
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

}  // namespace flashtile::cpu::FLASHTILE_ISA
