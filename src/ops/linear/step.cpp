// SPDX-License-Identifier: Apache-2.0
#include "ops/linear/implementation.hpp"

namespace flashtile {
namespace {

/// (batch, ...) as (batch, 1, ...).
TensorView timed(const TensorView& row) {
  if (!row) return row;
  TensorView timed = row;
  ++timed.ndim;
  timed.shape[1] = 1;
  timed.strides[1] = row.strides[0];
  for (size_t d = 2; d < static_cast<size_t>(timed.ndim); ++d) {
    timed.shape[d] = row.shape[d - 1];
    timed.strides[d] = row.strides[d - 1];
  }
  return timed;
}

TensorView line(const TensorView& tensor, int64_t index) {
  return tensor ? tensor.sliced(0, index, index + 1) : tensor;
}

/// Sequence b alone, with its line of the states.
LinearArgs sequence_args(const LinearOp& op, const LinearArgs& timed_args, int64_t b,
                         int64_t index) {
  LinearArgs one = timed_args;
  for (const LinearInput& input : op.inputs) {
    TensorView& tensor = *input.access(&one, {}, /*create=*/false);
    if (input.is_timed) tensor = line(tensor, b);
  }
  one.out = line(one.out, b);
  for (const LinearState& state : op.states) {
    for (const TensorAccess access : {state.access_initial, state.access_final}) {
      TensorView& tensor = *access(&one, {}, /*create=*/false);
      tensor = line(tensor, index);
    }
  }
  return one;
}

}  // namespace

LinearArgs one_row_args(const LinearOp& op, const LinearArgs& args) {
  LinearArgs forward = args;
  for (const LinearInput& input : op.inputs) {
    TensorView& tensor = *input.access(&forward, {}, /*create=*/false);
    if (input.is_timed) tensor = timed(tensor);
  }
  forward.out = timed(args.out);
  for (const LinearState& state : op.states) {
    const TensorView pool = *state.access_in_place(&forward, {}, /*create=*/false);
    *state.access_initial(&forward, {}, /*create=*/false) = pool;
    *state.access_final(&forward, {}, /*create=*/false) = pool;
  }
  forward.states = {};
  forward.state_slots = {};
  return forward;
}

int64_t state_line(const LinearArgs& args, int64_t b) {
  return args.state_slots ? *reinterpret_cast<const int32_t*>(args.state_slots.at({b})) : b;
}

void launch_step(const LinearImplementation& forward, const LinearProblem& problem,
                 const LinearArgs& args, const Context& context) {
  LinearProblem one = problem;
  one.pass = LinearPass::kForward;
  one.batch_size = 1;
  one.num_rows = 1;
  const LinearArgs timed_args = one_row_args(*problem.op, args);
  for (int64_t b = 0; b < problem.batch_size; ++b) {
    forward.launch(one, forward.plan(one),
                   sequence_args(*problem.op, timed_args, b, state_line(args, b)), context);
  }
}

}  // namespace flashtile
