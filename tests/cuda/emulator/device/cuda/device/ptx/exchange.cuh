// SPDX-License-Identifier: Apache-2.0
//
// src/cuda/device/ptx/exchange.cuh for the emulated GPU.
#pragma once

#include "cuda/device/ptx/memory.cuh"

namespace flashtile::device {

inline uint32 load_shared_word(uint32 address) { return shared_value<uint32>(address); }
inline int load_fresh(const int* address) { return *address; }
inline void fence_device() {}
inline uint32 atomic_increment(uint32* address) { return (*address)++; }

}  // namespace flashtile::device
