// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "cuda/plan/attention_fwd_sm90_plan.hpp"
#include "flashtile/context.hpp"
#include "ops/attention/args.hpp"

namespace flashtile::cuda {

/// Puts the Hopper forward on the context's stream. Throws Error; nothing has been launched then.
void launch_attention_fwd_sm90(const AttentionProblem& problem, const AttentionPlan& plan,
                               const AttentionArgs& args, const Context& context);

/// The same for a plan with another tile shape.
void launch_sm90_plan(const AttentionProblem& problem, const Sm90ForwardPlan& plan,
                      std::span<const KernelChoice> kernels, const AttentionArgs& args,
                      const Context& context);

}  // namespace flashtile::cuda
