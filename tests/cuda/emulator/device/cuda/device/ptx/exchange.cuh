// SPDX-License-Identifier: Apache-2.0
//
// src/cuda/device/ptx/exchange.cuh for the emulated GPU.
#pragma once

#include "cuda/device/ptx/memory.cuh"

namespace flashtile::device {

inline uint32 load_shared_word(uint32 address) { return shared_value<uint32>(address); }
inline FloatPair load_shared_floats(uint32 address) { return shared_value<FloatPair>(address); }
inline uint32 address_in_cluster(uint32 address, int rank) {
  return emulator::cluster_address(address, rank);
}
inline float load_from_cluster(uint32 address) {
  float value;
  std::memcpy(&value, emulator::cluster_memory(address, 4), 4);
  return value;
}
inline void load_from_cluster(float (&value)[4], uint32 address) {
  std::memcpy(value, emulator::cluster_memory(address, 16), 16);
}
inline int load_fresh(const int* address) { return *address; }
inline void fence_device() {}
inline uint32 atomic_increment(uint32* address) { return (*address)++; }
inline uint64 load_acquire(const uint64* address) { return *address; }
inline void store_release(uint64* address, uint64 value) { *address = value; }
inline bool exchange_if(uint64* address, uint64 expected, uint64 value) {
  if (*address != expected) return false;
  *address = value;
  return true;
}

}  // namespace flashtile::device
