// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

namespace flashtile::cli {

/// Times of one function.
struct Times {
  double median = 0, min = 0, max = 0;  ///< milliseconds
  int num_samples = 0;
};

/// Samples of one function; each is the mean of some runs, so that short ones can be timed.
class Sampler {
 public:
  /// `time_runs` runs it so many times and gives the milliseconds that this took. It is called for
  /// a warm-up right away.
  explicit Sampler(std::function<double(int num_runs)> time_runs);

  void sample();

  /// Milliseconds spent in samples so far.
  double total() const { return total_; }
  int num_samples() const { return static_cast<int>(samples_.size()); }
  Times times() const;

 private:
  std::function<double(int num_runs)> time_runs_;
  std::vector<double> samples_;
  double total_ = 0;
  int num_runs_ = 1;
};

/// The time of runs by the clock on the wall, for functions that return when they are done.
std::function<double(int num_runs)> wall_clock(std::function<void()> run);

}  // namespace flashtile::cli
