// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace flashtile {

/// Keeps a mark set while it lives: a remembered call that runs is left alone by calls that its
/// executor makes on the same thread.
class RunningMark {
 public:
  explicit RunningMark(bool* mark) : mark_(mark) { *mark_ = true; }
  ~RunningMark() { *mark_ = false; }
  RunningMark(const RunningMark&) = delete;
  RunningMark& operator=(const RunningMark&) = delete;

 private:
  bool* mark_;
};

}  // namespace flashtile
