// SPDX-License-Identifier: Apache-2.0
//
// attention_merge on a GPU.
#pragma once

#include <string>

#include "ops/attention_merge/merge.hpp"

namespace flashtile::cuda {

/// The first condition that the problem fails; empty: none.
std::string refuse_attention_merge(const MergeProblem& problem);
MergePlan plan_attention_merge(const MergeProblem& problem);
/// An lse of +inf is not looked for, as it is on a CPU: the result is NaN.
void launch_attention_merge(const MergeProblem& problem, const MergePlan& plan,
                            const MergeArgs& args, const Context& context);

}  // namespace flashtile::cuda
