// SPDX-License-Identifier: Apache-2.0
//
// Tiles without NaN and infinity: what a weight of 0 multiplies must be finite.
#pragma once

#include "cuda/device/ptx/convert.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

/// The elements of a word, 0 in place of those that are not finite.
template <Element element>
FLASHTILE_DEVICE uint32 finite_or_zero(uint32 word) {
  if constexpr (element == Element::kF32) {
    return (word & 0x7f800000u) == 0x7f800000u ? 0u : word;
  } else {
    constexpr uint32 kExponent = element == Element::kF16 ? 0x7c00u : 0x7f80u;
    const bool low = (word & kExponent) == kExponent;
    const bool high = (word >> 16 & kExponent) == kExponent;
    return word & ((low ? 0u : 0xffffu) | (high ? 0u : 0xffff0000u));
  }
}

/// Sets what is not finite in kBytes of shared memory to 0; by all threads of a CTA.
template <Element element, int kBytes, int kThreads>
FLASHTILE_DEVICE void clear_nonfinite(uint32 tile) {
  FLASHTILE_NO_UNROLL
  for (int at = thread_idx() * 16; at < kBytes; at += kThreads * 16) {
    const uint32 address = tile + static_cast<uint32>(at);
    const Vector4 value = load_shared_vector(address);
    const Vector4 kept = {finite_or_zero<element>(value.x), finite_or_zero<element>(value.y),
                          finite_or_zero<element>(value.z), finite_or_zero<element>(value.w)};
    const uint32 changed =
        (kept.x ^ value.x) | (kept.y ^ value.y) | (kept.z ^ value.z) | (kept.w ^ value.w);
    if (changed != 0) store_shared(address, kept);
  }
}

}  // namespace flashtile::device
