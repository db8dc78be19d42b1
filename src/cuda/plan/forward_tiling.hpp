// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/plan/attention_fwd_plan.hpp"

namespace flashtile::cuda {

/// The tile shape for a problem on its GPU. `may_pack`: query heads of a group may share a tile.
ForwardTiling choose_forward_tiling(const AttentionProblem& problem, bool may_pack);

}  // namespace flashtile::cuda
