// SPDX-License-Identifier: Apache-2.0
//
// attention_bwd_aux: gradients of aux tensors from their sums.
#pragma once

#include "cuda/device/backward/aux_gradients.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

template <class Config>
struct AuxWriter {
  static constexpr int kThreads = 128;

  const AuxGradientParams& sums;
  const AuxTargetParams& targets;

  FLASHTILE_DEVICE float value(const AuxGradientParam& from, int64 place) const {
    if constexpr (Config::kAuxSums == AuxSums::kDouble) {
      return static_cast<float>(from.sums[place]);
    } else {
      const int largest = *from.largest;
      if (largest == 0) return 0.0f;
      const float bound = float_from_bits(static_cast<uint32>(largest));
      if (!is_finite(bound)) return not_a_number();
      const int shift = fixed_point_shift(largest, sums.log2_count);
      const int64 units = reinterpret_cast<const int64*>(from.sums)[place];
      return static_cast<float>(static_cast<double>(units) * power_of_two(-shift));
    }
  }

  FLASHTILE_DEVICE void run() const {
    for (int n = 0; n < sums.num_aux; ++n) {
      const AuxGradientParam& from = sums.aux[n];
      if (from.sums == nullptr) continue;
      const AuxParam& to = targets.gradients[n];
      int64 count = 1;
      for (int d = 0; d < to.ndim; ++d) count *= to.shape[d];
      const int64 step = num_ctas() * kThreads;
      for (int64 at = cta_idx() * kThreads + thread_idx(); at < count; at += step) {
        int64 offset = 0;
        int64 rest = at;
        for (int d = to.ndim - 1; d >= 0; --d) {
          offset += rest % to.shape[d] * to.strides[d];
          rest /= to.shape[d];
        }
        *reinterpret_cast<float*>(const_cast<char*>(to.data) + offset) = value(from, at);
      }
    }
  }
};

}  // namespace flashtile::device

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::AuxWriter<Config>::kThreads, 4)
    attention_bwd_aux(FLASHTILE_PARAMETER flashtile::device::AuxGradientParams sums,
                      FLASHTILE_PARAMETER flashtile::device::AuxTargetParams targets) {
  const flashtile::device::AuxWriter<Config> kernel{sums, targets};
  kernel.run();
}
