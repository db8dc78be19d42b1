// SPDX-License-Identifier: Apache-2.0
#include "ops/linear/implementation.hpp"

namespace flashtile {
namespace {

/// (batch, ...) as (1, 1, ...), for sequence b.
TensorView one_row(const TensorView& tensor, int64_t b) {
  if (!tensor) return tensor;
  const TensorView row = tensor.sliced(0, b, b + 1);
  TensorView timed = row;
  ++timed.ndim;
  for (size_t d = 1; d < static_cast<size_t>(timed.ndim); ++d) {
    timed.shape[d] = row.shape[d - 1];
    timed.strides[d] = row.strides[d - 1];
  }
  return timed;
}

TensorView line(const TensorView& states, int64_t index) {
  return states ? states.sliced(0, index, index + 1) : states;
}

LinearArgs forward_args(const LinearOp& op, const LinearArgs& args, int64_t b) {
  LinearArgs one = args;
  one.states = {};
  one.state_slots = {};
  for (const LinearInput& input : op.inputs) {
    TensorView& tensor = *input.access(&one, {}, /*create=*/false);
    if (input.is_timed) tensor = one_row(tensor, b);
  }
  one.out = one_row(args.out, b);
  const int64_t index =
      args.state_slots ? *reinterpret_cast<const int32_t*>(args.state_slots.at({b})) : b;
  for (const LinearState& state : op.states) {
    LinearArgs all = args;
    const TensorView place = line(*state.access_in_place(&all, {}, /*create=*/false), index);
    *state.access_initial(&one, {}, /*create=*/false) = place;
    *state.access_final(&one, {}, /*create=*/false) = place;
  }
  return one;
}

}  // namespace

void launch_step(const LinearImplementation& forward, const LinearProblem& problem,
                 const LinearArgs& args, const Context& context) {
  LinearProblem one = problem;
  one.pass = LinearPass::kForward;
  one.batch_size = 1;
  one.num_rows = 1;
  for (int64_t b = 0; b < problem.batch_size; ++b) {
    forward.launch(one, forward.plan(one), forward_args(*problem.op, args, b), context);
  }
}

}  // namespace flashtile
