// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashtile/linear.hpp"

namespace flashtile {

/// The step size of the mamba ops: dt + dt_bias through softplus and limits, with its derivative.
struct StepSize {
  double value = 0;
  double slope = 0;  ///< by dt, and by dt_bias
};

/// `dt` is an element of that input, of head or channel `head`.
StepSize step_size(const LinearArgs& args, double dt, int64_t head);

}  // namespace flashtile
