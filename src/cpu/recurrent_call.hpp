// SPDX-License-Identifier: Apache-2.0
//
// The launchers of recurrences that are worked out row by row on the CPU: vector decay and the
// delta family.
#pragma once

#include "cpu/attention_call.hpp"
#include "cpu/linear_call.hpp"

namespace flashtile::cpu {

LinearPlan plan_recurrent_fwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_recurrent_fwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                          const LinearArgs& args, const Context& context);

LinearPlan plan_vector_decay_bwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_vector_decay_bwd(const IsaEntry& isa, const LinearProblem& problem,
                             const LinearPlan& plan, const LinearArgs& args,
                             const Context& context);

}  // namespace flashtile::cpu
