// SPDX-License-Identifier: Apache-2.0
//
// How the portable backward runs: tile shapes, the grid, the workspace and the kernels. Made from
// the problem alone.
#pragma once

#include <string>

#include "cuda/device/params/backward_shape.hpp"
#include "cuda/plan/attention_fwd_plan.hpp"
#include "ops/attention/problem.hpp"

namespace flashtile::cuda {

/// A CTA's shape and what goes with it.
struct BackwardTiling {
  device::BackwardShape shape;
  int min_ctas = 1;  ///< of a multiprocessor: bounds the registers of a thread
};

/// The plan with its parts, as the launcher needs them.
struct BackwardPlan {
  BackwardTiling tiling;
  int64_t num_n_blocks = 0;  ///< of the longest sequence
  int64_t num_ctas = 0;
  int64_t padded_rows = 0;    ///< of a head, over all sequences
  bool is_main_only = false;  ///< for timing: without the kernels before and after
  int64_t num_m_blocks = 0;
  BlockMapPlan blocks;
  WorkspaceRegion lse, delta, dq_sums, listed, map;
  int64_t num_sink_parts = 0;
  int64_t num_slope_parts = 0;  ///< of a head of a sequence
  WorkspaceRegion parts;        ///< those of sinks, then those of slopes
  int64_t workspace_bytes = 0;
};

/// The first condition that the portable backward does not meet.
std::string refuse_attention_bwd(const AttentionProblem& problem);

BackwardPlan make_backward_plan(const AttentionProblem& problem);

/// The same with a tile shape from outside, for tuning and tests.
BackwardPlan make_backward_plan(const AttentionProblem& problem, const BackwardTiling& tiling);

/// The kernels in order of launch.
std::vector<KernelChoice> backward_kernels(const AttentionProblem& problem,
                                           const BackwardPlan& plan);

AttentionPlan plan_attention_bwd(const AttentionProblem& problem);

}  // namespace flashtile::cuda
