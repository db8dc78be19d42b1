// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/plan/attention_bwd_plan.hpp"
#include "flashtile/context.hpp"
#include "ops/attention/args.hpp"

namespace flashtile::cuda {

/// Puts the backward kernels on the context's stream. Throws Error; nothing has been launched then.
void launch_attention_bwd(const AttentionProblem& problem, const AttentionPlan& plan,
                          const AttentionArgs& args, const Context& context);

/// The same for a plan with another tile shape.
void launch_backward_plan(const AttentionProblem& problem, const BackwardPlan& plan,
                          const AttentionArgs& args, const Context& context);

}  // namespace flashtile::cuda
