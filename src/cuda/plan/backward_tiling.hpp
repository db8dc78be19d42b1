// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "cuda/plan/attention_bwd_plan.hpp"

namespace flashtile::cuda {

/// The tile shape for a problem of 16-bit elements on its GPU; nothing where no tile shape fits.
std::optional<BackwardTiling> choose_backward_tiling(const AttentionProblem& problem);

/// A shape's sizes without the head dims, which follow from the problem and the warps.
struct BackwardBlocks {
  int block_m, block_n;
  int warps_n, warps_m;
  int dq_warps_m, dq_passes;
  int slice, num_stages;
  int min_ctas;
};

/// The tiling with head dims padded as its warps need it.
BackwardTiling backward_tiling(const AttentionProblem& problem, const BackwardBlocks& blocks);

}  // namespace flashtile::cuda
