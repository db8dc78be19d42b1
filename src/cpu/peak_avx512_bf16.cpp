// SPDX-License-Identifier: Apache-2.0
#include "cpu/peak_kernel.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Their latency is up to six cycles on two units: twelve chains leave those without work a tenth
/// of the time.
inline constexpr int kDotChains = 24;

/// As peak_f32, for dot products of pairs of bfloat16.
float peak_bf16_dot(int64_t num_rounds, double* num_operations) {
  Vf sums[kDotChains];
  for (int i = 0; i < kDotChains; ++i) sums[i] = broadcast(static_cast<float>(i));
  // Pairs of 2^-64: sums stay finite and normal for any number of rounds.
  const Vu pairs = broadcast_u(0x1f801f80u);
  for (int64_t round = 0; round < num_rounds; ++round) {
    FLASHTILE_UNROLL
    for (int i = 0; i < kDotChains; ++i) sums[i] = dot_pairs(pairs, pairs, sums[i]);
  }
  Vf total = sums[0];
  for (int i = 1; i < kDotChains; ++i) total = total + sums[i];
  *num_operations = 4.0 * kDotChains * kLanes * static_cast<double>(num_rounds);
  return reduce_add(total);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
