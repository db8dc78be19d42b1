// SPDX-License-Identifier: Apache-2.0
//
// Latent attention on Hopper: values are the first columns of keys. The plan is that of the
// portable forward with another CTA.
#pragma once

#include "cuda/plan/attention_fwd_plan.hpp"

namespace flashtile::cuda {

/// The first condition that the kernel does not meet.
std::string refuse_attention_fwd_latent_sm90(const AttentionProblem& problem);

AttentionPlan plan_attention_fwd_latent_sm90(const AttentionProblem& problem);

}  // namespace flashtile::cuda
