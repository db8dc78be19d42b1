// SPDX-License-Identifier: Apache-2.0
//
// The launchers of scalar decay on the CPU.
#pragma once

#include "cpu/attention_call.hpp"
#include "cpu/linear_call.hpp"

namespace flashtile::cpu {

/// The kernels that a problem is computed with: bf16 pairs for bf16 inputs where there are any.
const ScalarDecayOperandKernels& scalar_decay_operands(const IsaEntry& isa,
                                                       const LinearProblem& problem);
ScalarDecayShape scalar_decay_shape(const LinearProblem& problem, int64_t max_rows);

LinearPlan plan_scalar_decay_fwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_scalar_decay_fwd(const IsaEntry& isa, const LinearProblem& problem,
                             const LinearPlan& plan, const LinearArgs& args,
                             const Context& context);

LinearPlan plan_scalar_decay_bwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_scalar_decay_bwd(const IsaEntry& isa, const LinearProblem& problem,
                             const LinearPlan& plan, const LinearArgs& args,
                             const Context& context);

/// Most neighbouring states that a task takes, a chunk of each in turn.
int64_t max_state_group(const LinearProblem& problem);

/// Into how many parts each of `num_streams` recurrences falls, so that all workers have something
/// to do, and one of these parts; the last ones may be empty.
int64_t column_parts(int64_t num_columns, int64_t num_streams, int64_t num_workers);
ColumnRange column_part(int64_t num_columns, int64_t num_parts, int64_t part);

/// Multiply-adds of the forward, about.
double scalar_decay_work(const LinearProblem& problem);

}  // namespace flashtile::cpu
