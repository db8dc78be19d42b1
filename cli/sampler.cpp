// SPDX-License-Identifier: Apache-2.0
#include "sampler.hpp"

#include <algorithm>
#include <chrono>

namespace flashtile::cli {

Sampler::Sampler(std::function<double(int num_runs)> time_runs) : time_runs_(std::move(time_runs)) {
  constexpr double kSampleMilliseconds = 10;
  time_runs_(1);  // warm-up: memory is touched, threads are there
  const double once = time_runs_(1);
  num_runs_ = std::clamp(static_cast<int>(kSampleMilliseconds / std::max(once, 1e-4)), 1, 10000);
}

void Sampler::sample() {
  const double time = time_runs_(num_runs_);
  total_ += time;
  samples_.push_back(time / num_runs_);
}

Times Sampler::times() const {
  std::vector<double> sorted = samples_;
  std::sort(sorted.begin(), sorted.end());
  return {sorted[sorted.size() / 2], sorted.front(), sorted.back(), num_samples()};
}

std::function<double(int num_runs)> wall_clock(std::function<void()> run) {
  return [run = std::move(run)](int num_runs) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < num_runs; ++i) run();
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    return time.count();
  };
}

}  // namespace flashtile::cli
