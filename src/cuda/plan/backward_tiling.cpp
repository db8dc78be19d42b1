// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/backward_tiling.hpp"

#include <algorithm>
#include <numeric>

#include "cuda/plan/attention_config.hpp"

namespace flashtile::cuda {

BackwardTiling backward_tiling(const AttentionProblem& problem, const BackwardBlocks& blocks) {
  BackwardTiling tiling;
  device::BackwardShape& shape = tiling.shape;
  const int dq_warps_d = blocks.warps_n * blocks.warps_m / blocks.dq_warps_m;
  shape.element_bytes = static_cast<int>(dtype_bytes(problem.dtype));
  shape.head_dim = static_cast<int>(
      round_up(problem.head_dim, 16 * std::lcm(blocks.warps_m, dq_warps_d * blocks.dq_passes)));
  shape.head_dim_v = static_cast<int>(round_up(problem.head_dim_v, 16 * blocks.warps_m));
  shape.block_m = blocks.block_m;
  shape.block_n = blocks.block_n;
  shape.warps_n = blocks.warps_n;
  shape.warps_m = blocks.warps_m;
  shape.dq_warps_m = blocks.dq_warps_m;
  shape.dq_passes = blocks.dq_passes;
  shape.slice = blocks.slice;
  shape.num_stages = blocks.num_stages;
  tiling.min_ctas = blocks.min_ctas;
  return tiling;
}

BackwardTiling choose_backward_tiling(const AttentionProblem& problem) {
  const int64_t widest = std::max(problem.head_dim, problem.head_dim_v);
  // Up to 64 columns a warp keeps 32 keys' gradients whole, and weights in registers.
  if (widest <= 32) return backward_tiling(problem, {64, 128, 4, 1, 4, 1, 32, 2, 2});
  if (widest <= 64) return backward_tiling(problem, {64, 128, 4, 1, 2, 1, 32, 2, 2});
  if (widest <= 128) return backward_tiling(problem, {64, 128, 4, 2, 2, 1, 32, 2, 1});
  return backward_tiling(problem, {64, 64, 2, 4, 2, 1, 16, 2, 1});
}

}  // namespace flashtile::cuda
