// SPDX-License-Identifier: Apache-2.0
//
// The launchers of recurrences that are worked out row by row on the CPU: vector decay, slots and
// the delta family.
#pragma once

#include <algorithm>
#include <vector>

#include "core/workspace.hpp"
#include "cpu/attention_call.hpp"
#include "cpu/linear_call.hpp"

namespace flashtile::cpu {

/// Rows whose inputs are packed together.
inline constexpr int64_t kRecurrentRows = 32;

/// Columns of `dim` with those that fill its last strip.
inline int64_t strip_columns(const RecurrentKernels& kernels, int64_t dim) {
  return ceil_div(dim, kernels.strip_width) * kernels.strip_width;
}

/// How a row of an op changes the state.
RecurrentUpdate recurrent_update(const LinearOp& op);

/// The kernels that take chunks of a problem of vector decay; null where rows by themselves do.
const VectorDecayPairKernels* vector_decay_pairs(const IsaEntry& isa, const LinearProblem& problem);

/// Of one head, as kernels take it; empty where there is none.
KeptList<float> bonus_of(const LinearProblem& problem, const LinearArgs& args, int64_t head);

/// A plan with one task for each state of each sequence; `Memory` is what a worker takes.
template <class Memory>
LinearPlan plan_states(const IsaEntry& isa, const LinearProblem& problem,
                       int64_t max_rows = kRecurrentRows) {
  LinearPlan plan;
  plan.implementation = isa_name(isa.isa);
  plan.chunk_size = std::clamp<int64_t>(problem.max_seqlen, 1, max_rows);
  plan.num_tasks = problem.batch_size * problem.num_state_heads;
  if (plan.num_tasks == 0) return plan;
  WorkspaceCursor cursor;
  Memory(isa, problem, plan.chunk_size, cursor);
  plan.bytes_a_worker = cursor.used();
  return plan;
}

LinearPlan plan_recurrent_fwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_recurrent_fwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                          const LinearArgs& args, const Context& context);

/// Of scalar decay, too.
LinearPlan plan_state_step(const IsaEntry& isa, const LinearProblem& problem);
void launch_state_step(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                       const LinearArgs& args, const Context& context);

LinearPlan plan_vector_decay_bwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_vector_decay_bwd(const IsaEntry& isa, const LinearProblem& problem,
                             const LinearPlan& plan, const LinearArgs& args,
                             const Context& context);

LinearPlan plan_slots_fwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_slots_fwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                      const LinearArgs& args, const Context& context);
LinearPlan plan_slots_bwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_slots_bwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                      const LinearArgs& args, const Context& context);

LinearPlan plan_delta_fwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_delta_fwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                      const LinearArgs& args, const Context& context);
LinearPlan plan_delta_rows_bwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_delta_rows_bwd(const IsaEntry& isa, const LinearProblem& problem,
                           const LinearPlan& plan, const LinearArgs& args, const Context& context);
LinearPlan plan_delta_bwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_delta_bwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                      const LinearArgs& args, const Context& context);

}  // namespace flashtile::cpu
