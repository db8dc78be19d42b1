// SPDX-License-Identifier: Apache-2.0
//
// What the sweeps share: memory of a device, waiting for it, and times by its events.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/runtime/current.hpp"

namespace flashtile::bench {

/// Device memory that lasts as long as the program.
inline std::shared_ptr<void> allocate(int64_t bytes, const Context& context) {
  const cuda::CurrentContext current(context);
  cuda::driver::Address address = 0;
  current.driver().check(current.api().cuMemAlloc(&address, static_cast<size_t>(bytes)), "memory");
  return {reinterpret_cast<void*>(address), [](void*) {}};
}

inline void wait(const Context& context) {
  const cuda::CurrentContext current(context);
  current.driver().check(current.api().cuStreamSynchronize(nullptr), "waiting");
}

/// Milliseconds of `repeats` runs, each.
template <class Run>
double milliseconds(const Context& context, int repeats, const Run& run) {
  const cuda::CurrentContext current(context);
  cuda::driver::EventHandle start = nullptr;
  cuda::driver::EventHandle end = nullptr;
  current.api().cuEventCreate(&start, cuda::driver::kEventDefault);
  current.api().cuEventCreate(&end, cuda::driver::kEventDefault);
  current.api().cuEventRecord(start, nullptr);
  for (int i = 0; i < repeats; ++i) run();
  current.api().cuEventRecord(end, nullptr);
  current.driver().check(current.api().cuEventSynchronize(end), "timing");
  float time = 0;
  current.api().cuEventElapsedTime(&time, start, end);
  current.api().cuEventDestroy(start);
  current.api().cuEventDestroy(end);
  return double{time} / repeats;
}

inline double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace flashtile::bench
