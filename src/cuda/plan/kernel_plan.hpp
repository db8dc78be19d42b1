// SPDX-License-Identifier: Apache-2.0
//
// What plans of several kernels are put together from.
#pragma once

#include <string>

#include "cuda/plan/attention_fwd_plan.hpp"
#include "ops/attention/problem.hpp"

namespace flashtile::cuda {

/// Hands out parts of the workspace.
class WorkspaceRegions {
 public:
  WorkspaceRegion take(int64_t bytes);
  int64_t used() const { return used_; }

 private:
  int64_t used_ = 0;
};

/// True when kernels can wait by themselves for the one in front of them.
bool may_overlap(const AttentionProblem& problem);

/// True where later queries see more keys: blocks of a head differ in how much there is to do.
bool has_upper_bound(const AttentionProblem& problem);

/// How many of `num_groups` groups of heads are worked on together, where `bytes` are what one of
/// them reads: what a good part of the L2 cache holds. Sections are as large as each other: the
/// longest blocks of a small last one would end when nothing else is left.
int64_t groups_per_section(const GpuModel& gpu, int64_t num_groups, int64_t bytes);

/// A kernel with a CTA for each piece of work.
KernelChoice tile_kernel(const GpuModel& gpu, std::string stem, std::string config,
                         int64_t num_ctas, int64_t num_threads, int64_t shared_bytes);

/// A kernel of CTAs of four warps, which share `num_items` in strides.
KernelChoice strided_kernel(const GpuModel& gpu, std::string stem, std::string config,
                            int64_t num_items);

/// The kernel that clears max_logit, and makes bits of the lines of block lists.
KernelChoice prepare_kernel(const AttentionProblem& problem, int64_t num_lines);

/// The kernel that makes the map of blocks.
KernelChoice block_map_kernel(const AttentionProblem& problem, const BlockMapPlan& blocks,
                              int64_t num_m_blocks, std::string config);

/// The kernel that orders query blocks by what the map says.
KernelChoice order_kernel(const AttentionProblem& problem, const BlockMapPlan& blocks);

/// The map of the key blocks that query blocks visit: which sizes it has where masks are not all by
/// position. `num_heads`: of the grid of query blocks.
BlockMapPlan make_block_map_plan(const AttentionProblem& problem, int64_t num_m_blocks,
                                 int64_t block_n, int64_t num_heads);

}  // namespace flashtile::cuda
