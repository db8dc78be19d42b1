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

/// A kernel with a CTA for each piece of work.
KernelChoice tile_kernel(const AttentionProblem& problem, std::string stem, std::string config,
                         int64_t num_ctas, int64_t num_threads, int64_t shared_bytes);

/// A kernel of CTAs of four warps, which share `num_items` in strides.
KernelChoice strided_kernel(const AttentionProblem& problem, std::string stem, std::string config,
                            int64_t num_items);

}  // namespace flashtile::cuda
