// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "device_tensors.hpp"

namespace flashtile::cli {

/// Copies of a call on a GPU that run in turns, so many that none finds its inputs in the L2 cache,
/// and their time on the device's own clock.
class DeviceRotation {
 public:
  /// With `forward_context` the forward call that belongs to a backward call runs before it.
  DeviceRotation(const OpCall& host, const Context& context,
                 const std::optional<Context>& forward_context);

  /// Milliseconds between the device's start with the first and its end with the last of so many
  /// runs, which take the copies in turns.
  double time_runs(int num_runs);

  int num_copies() const { return static_cast<int>(copies_.size()); }
  /// The median of the multiprocessors' clock in the last of the runs that were timed; nothing
  /// where the machine does not say.
  std::optional<double> clock_mhz() const;

 private:
  struct Copy {
    DeviceCall main;
    std::optional<DeviceCall> forward;
  };

  Context context_;
  std::vector<Copy> copies_;
  size_t next_ = 0;
  std::vector<double> clocks_;
};

}  // namespace flashtile::cli
