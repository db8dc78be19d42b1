// SPDX-License-Identifier: Apache-2.0
#include "device_rotation.hpp"

#include <algorithm>

#include "cuda/runtime/clock.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/runtime/event.hpp"

namespace flashtile::cli {
namespace {

/// What comes between two uses of a copy: this many times the cache.
constexpr int64_t kCachesApart = 3;
constexpr int64_t kMaxCopies = 256;

}  // namespace

DeviceRotation::DeviceRotation(const OpCall& host, const Context& context,
                               const std::optional<Context>& forward_context)
    : context_(context) {
  const int64_t apart = kCachesApart * cuda::device_info(context.device.index).model.l2_bytes;
  int64_t num_copies = 1;
  for (int64_t i = 0; i < num_copies; ++i) {
    Copy copy{DeviceCall(host, context), std::nullopt};
    if (forward_context) copy.forward.emplace(copy.main.forward(*forward_context));
    copies_.push_back(std::move(copy));
    const int64_t bytes = std::max<int64_t>(copies_.front().main.memory_bytes(), 1);
    const auto free_bytes = static_cast<int64_t>(cuda::memory_info(context).free_bytes);
    num_copies = std::clamp<int64_t>(apart / bytes + 1, 1, kMaxCopies);
    if (free_bytes < 2 * bytes) break;
  }
}

double DeviceRotation::time_runs(int num_runs) {
  cuda::Event start(context_);
  cuda::Event end(context_);
  start.record();
  for (int i = 0; i < num_runs; ++i) {
    const Copy& copy = copies_[next_];
    next_ = (next_ + 1) % copies_.size();
    if (copy.forward) copy.forward->run();
    copy.main.run();
  }
  end.record();
  // The host is ahead: the device is still at work.
  if (const auto clock = cuda::sm_clock_mhz(context_.device.index)) clocks_.push_back(*clock);
  end.wait();
  return end.milliseconds_since(start);
}

std::optional<double> DeviceRotation::clock_mhz() const {
  if (clocks_.empty()) return std::nullopt;
  std::vector<double> sorted = clocks_;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

}  // namespace flashtile::cli
