// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/plan/attention_bwd_plan.hpp"

namespace flashtile::cuda {

/// The tile shape for a problem on its GPU.
BackwardTiling choose_backward_tiling(const AttentionProblem& problem);

/// A shape with head dims padded as its warps need it.
BackwardTiling backward_tiling(const AttentionProblem& problem, int block_m, int block_n,
                               int warps_n, int warps_m, int dq_warps_m, int slice, int num_stages,
                               int min_ctas);

}  // namespace flashtile::cuda
