// SPDX-License-Identifier: Apache-2.0
//
// The launcher of what layers have around their recurrence, on the CPU.
#pragma once

#include "cpu/attention_call.hpp"
#include "cpu/linear_call.hpp"

namespace flashtile::cpu {

/// The most rows before its own that a row of short_conv may read.
inline constexpr int64_t kMaxPast = 64;

/// Of any pass; of a step where the op has no state.
LinearPlan plan_layer_part(const IsaEntry& isa, const LinearProblem& problem);
void launch_layer_part(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                       const LinearArgs& args, const Context& context);

}  // namespace flashtile::cpu
