// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/kernel_plan.hpp"

#include <algorithm>

#include "cuda/plan/attention_config.hpp"

namespace flashtile::cuda {

WorkspaceRegion WorkspaceRegions::take(int64_t bytes) {
  constexpr int64_t kRegionAlignment = 256;
  const WorkspaceRegion region = {used_, bytes};
  used_ += round_up(bytes, kRegionAlignment);
  return region;
}

KernelChoice tile_kernel(const AttentionProblem& problem, std::string stem, std::string config,
                         int64_t num_ctas, int64_t num_threads, int64_t shared_bytes) {
  constexpr int64_t kLargestGrid = (int64_t{1} << 31) - 1;
  KernelChoice kernel;
  kernel.source = {std::move(stem), std::move(config), problem.gpu->arch, {}};
  kernel.grid = {std::min(num_ctas, kLargestGrid), 1, 1};
  kernel.num_threads = num_threads;
  kernel.shared_bytes = shared_bytes;
  return kernel;
}

KernelChoice strided_kernel(const AttentionProblem& problem, std::string stem, std::string config,
                            int64_t num_items) {
  constexpr int64_t kWarps = 4;
  constexpr int64_t kMostCtas = 1 << 14;
  const int64_t num_ctas = std::clamp<int64_t>(ceil_div(num_items, kWarps), 1, kMostCtas);
  return tile_kernel(problem, std::move(stem), std::move(config), num_ctas, 32 * kWarps, 0);
}

}  // namespace flashtile::cuda
