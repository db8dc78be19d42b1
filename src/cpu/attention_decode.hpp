// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/attention_call.hpp"

namespace flashtile::cpu {

/// True for the few queries of decoding with options that the decode path has. Everything else goes
/// through packed key blocks.
bool takes_decode(const AttentionProblem& problem);

AttentionPlan plan_attention_decode(const IsaEntry& isa, const AttentionProblem& problem);
void launch_attention_decode(const IsaEntry& isa, const AttentionProblem& problem,
                             const AttentionPlan& plan, const AttentionArgs& args,
                             const Context& context);

}  // namespace flashtile::cpu
