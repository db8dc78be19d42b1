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
  return forward;
}

void launch_step(const LinearImplementation& forward, const LinearProblem& problem,
                 const LinearArgs& args, const Context& context) {
  LinearProblem one = problem;
  one.pass = LinearPass::kForward;
  forward.launch(one, forward.plan(one), one_row_args(*problem.op, args), context);
}

}  // namespace flashtile
