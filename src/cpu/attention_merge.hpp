// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/attention_call.hpp"
#include "ops/attention_merge/merge.hpp"

namespace flashtile::cpu {

/// out and lse of one row from its parts. The problem says their number, size and dtypes.
void join_row(const IsaEntry& isa, const MergeProblem& problem, const MergeRow& row);

MergePlan plan_attention_merge(const IsaEntry& isa, const MergeProblem& problem);
void launch_attention_merge(const IsaEntry& isa, const MergeProblem& problem, const MergePlan& plan,
                            const MergeArgs& args, const Context& context);

}  // namespace flashtile::cpu
