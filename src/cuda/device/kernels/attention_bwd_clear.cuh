// SPDX-License-Identifier: Apache-2.0
//
// attention_bwd_clear: zeros where parts of gradients are left that attention_bwd_reduce sums.
#pragma once

#include "cuda/device/params/backward_params.hpp"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

constexpr int kClearThreads = 128;

}  // namespace flashtile::device

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::kClearThreads, 4)
    attention_bwd_clear(FLASHTILE_PARAMETER flashtile::device::AttentionParams,
                        FLASHTILE_PARAMETER flashtile::device::BackwardParams backward) {
  using namespace flashtile::device;
  const int64 step = num_ctas() * kClearThreads;
  for (int64 at = cta_idx() * kClearThreads + thread_idx(); at < backward.num_cleared; at += step) {
    backward.cleared[at] = 0;
  }
}
