// SPDX-License-Identifier: Apache-2.0
//
// Sums of the gradients of aux tensors. Any pair may add to any element. In any order they are
// summed in double; where all runs must give the same bits, in fixed point of 64 bits, whose unit
// follows from the largest number, which a launch before has found.
#pragma once

#include "cuda/device/params/gradient_params.hpp"
#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/memory.cuh"

namespace flashtile::device {

enum class AuxSums { kNone, kDouble, kLargest, kFixed };

/// The exponent of the unit of fixed-point sums: numbers below 2^exponent of `largest` are below
/// 2^(62 - log2_count) units.
FLASHTILE_DEVICE int fixed_point_shift(int largest_bits, int log2_count) {
  const int exponent = (largest_bits >> 23) - 126;
  return 62 - log2_count - exponent;
}

template <AuxSums kSums>
struct AuxSink {
  const AuxGradientParams& gradients;
  float dlogit;

  /// `place`: the element in row-major order.
  FLASHTILE_DEVICE void operator()(int aux_idx, float derivative, int64 place) const {
    const AuxGradientParam& target = gradients.aux[aux_idx];
    if (target.sums == nullptr) return;
    const float value = dlogit * derivative;
    if constexpr (kSums == AuxSums::kDouble) {
      atomic_add(target.sums + place, static_cast<double>(value));
    } else if constexpr (kSums == AuxSums::kLargest) {
      const int bits = static_cast<int>(bits_of_float(absolute(value)));
      if (bits > *static_cast<const volatile int*>(target.largest)) {
        atomic_max(target.largest, bits);
      }
    } else {
      const int shift = fixed_point_shift(*target.largest, gradients.log2_count);
      atomic_add(reinterpret_cast<int64*>(target.sums) + place,
                 int64_from_double(static_cast<double>(value) * power_of_two(shift)));
    }
  }
};

}  // namespace flashtile::device
