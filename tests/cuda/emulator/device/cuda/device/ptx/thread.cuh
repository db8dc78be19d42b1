// SPDX-License-Identifier: Apache-2.0
//
// src/cuda/device/ptx/thread.cuh for the emulated GPU.
#pragma once

#include <cstring>

#include "cuda/device/ptx/define.cuh"

namespace flashtile::device {

constexpr int kWarpSize = 32;
constexpr uint32 kAllLanes = 0xffffffffu;

inline int thread_idx() { return emulator::current().thread_idx; }
inline int lane_idx() { return thread_idx() % kWarpSize; }
inline int fresh(int value) { return value; }
/// On a GPU the lanes ask each other: all of them have to.
inline int warp_idx() {
  emulator::sync_warp();
  return thread_idx() / kWarpSize;
}
inline int64 cta_idx() { return emulator::current().cta_idx; }
inline int64 num_ctas() { return emulator::current().num_ctas; }

inline void sync_cta() { emulator::sync_cta(); }
inline void sync_warp() { emulator::sync_warp(); }
inline void sync_group(int id, int num_threads) { emulator::sync_group(id, num_threads); }
inline void sync_cluster() { emulator::sync_cluster(); }
inline void start_next_grid() {}
inline void wait_for_previous_grid() {}
inline bool sync_cta_any(bool value) { return emulator::sync_cta_any(value); }

template <class T>
T value_of_lane(const char* slots, int lane) {
  T value;
  std::memcpy(&value, slots + lane * 128, sizeof value);
  return value;
}

template <class T>
T shuffle_xor(T value, int lane_mask) {
  return value_of_lane<T>(emulator::exchange(&value, sizeof value), lane_idx() ^ lane_mask);
}
template <class T>
T shuffle(T value, int lane) {
  return value_of_lane<T>(emulator::exchange(&value, sizeof value), lane);
}
inline int least_of_lanes(int value) {
  for (int lanes = 1; lanes < kWarpSize; lanes *= 2) {
    const int other = shuffle_xor(value, lanes);
    value = other < value ? other : value;
  }
  return value;
}
inline int largest_of_lanes(int value) { return ~least_of_lanes(~value); }
inline bool any_lane(bool value) {
  const char* slots = emulator::exchange(&value, sizeof value);
  bool any = false;
  for (int lane = 0; lane < kWarpSize; ++lane) any = any || value_of_lane<bool>(slots, lane);
  return any;
}
inline bool all_lanes(bool value) { return !any_lane(!value); }

}  // namespace flashtile::device
