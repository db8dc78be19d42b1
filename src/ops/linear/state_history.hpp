// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace flashtile {

/// All states of a recurrence, for a backward pass that visits them from the last to the first. It
/// keeps about sqrt(length) of them and works out the others again, so that a long sequence needs
/// no memory for each row.
///
/// `step(t, state)` makes the state behind row t from the one before it, in place.
template <class Step>
class StateHistory {
 public:
  StateHistory(int64_t length, std::vector<double> initial, const Step& step)
      : step_(step),
        stride_(std::max<int64_t>(1, std::llround(std::sqrt(static_cast<double>(length))))) {
    last_ = std::move(initial);
    for (int64_t t = 0; t < length; ++t) {
      if (t % stride_ == 0) kept_.push_back(last_);
      step_(t, last_);
    }
  }

  /// Behind the last row.
  const std::vector<double>& last() const { return last_; }

  /// Before row t. Stays valid until the next call.
  const std::vector<double>& before(int64_t t) {
    const int64_t segment = t / stride_;
    if (segment != segment_) {
      segment_ = segment;
      recomputed_.assign(1, kept_[static_cast<size_t>(segment)]);
    }
    while (static_cast<int64_t>(recomputed_.size()) <= t % stride_) {
      recomputed_.push_back(recomputed_.back());
      step_(segment * stride_ + static_cast<int64_t>(recomputed_.size()) - 2, recomputed_.back());
    }
    return recomputed_[static_cast<size_t>(t % stride_)];
  }

 private:
  const Step& step_;
  int64_t stride_;
  int64_t segment_ = -1;
  std::vector<double> last_;
  std::vector<std::vector<double>> kept_;        ///< before rows 0, stride, 2 stride, ...
  std::vector<std::vector<double>> recomputed_;  ///< before the rows of one segment
};

}  // namespace flashtile
