// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/device/params/attention_params.hpp"
#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/memory.cuh"

namespace flashtile::device {

/// The larger of a head's maximum and `value`; NaN stays. The memory holds -inf, or what this
/// wrote.
FLASHTILE_DEVICE void raise_max_logit(const HeadScalarsParam& max_logit, int head, float value) {
  char* address = reinterpret_cast<char*>(max_logit.data) + head * max_logit.head_stride;
  const float x = value != value ? not_a_number() : value + 0.0f;  // -0 becomes 0
  // Floats order like their bits as integers where positive, the other way round where negative.
  if (x < 0.0f) {
    atomic_min(reinterpret_cast<uint32*>(address), bits_of_float(x));
  } else {
    atomic_max(reinterpret_cast<int*>(address), static_cast<int>(bits_of_float(x)));
  }
}

}  // namespace flashtile::device
