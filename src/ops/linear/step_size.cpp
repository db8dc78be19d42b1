// SPDX-License-Identifier: Apache-2.0
#include "ops/linear/step_size.hpp"

#include <algorithm>

#include "ops/linear/activations.hpp"
#include "ops/linear/sequences.hpp"

namespace flashtile {

StepSize step_size(const LinearArgs& args, double dt, int64_t head) {
  if (args.inputs.dt_bias) dt += load_parameter(args.inputs.dt_bias, head);
  StepSize step{dt, 1};
  if (args.dt_softplus) step = {softplus(dt), sigmoid(dt)};
  const double clamped = std::min(std::max(step.value, args.dt_min), args.dt_max);
  if (clamped != step.value) step = {clamped, 0};
  return step;
}

}  // namespace flashtile
