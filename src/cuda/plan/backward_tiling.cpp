// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/backward_tiling.hpp"

#include <algorithm>
#include <numeric>

#include "cuda/plan/attention_config.hpp"

namespace flashtile::cuda {

BackwardTiling backward_tiling(const AttentionProblem& problem, int block_m, int block_n,
                               int warps_n, int warps_m, int dq_warps_m, int slice, int num_stages,
                               int min_ctas) {
  BackwardTiling tiling;
  device::BackwardShape& shape = tiling.shape;
  const int dq_warps_d = warps_n * warps_m / dq_warps_m;
  shape.element_bytes = static_cast<int>(dtype_bytes(problem.dtype));
  shape.head_dim = static_cast<int>(round_up(problem.head_dim, 16 * std::lcm(warps_m, dq_warps_d)));
  shape.head_dim_v = static_cast<int>(round_up(problem.head_dim_v, 16 * warps_m));
  shape.block_m = block_m;
  shape.block_n = block_n;
  shape.warps_n = warps_n;
  shape.warps_m = warps_m;
  shape.dq_warps_m = dq_warps_m;
  shape.slice = slice;
  shape.num_stages = num_stages;
  tiling.min_ctas = min_ctas;
  return tiling;
}

BackwardTiling choose_backward_tiling(const AttentionProblem& problem) {
  const int64_t widest = std::max(problem.head_dim, problem.head_dim_v);
  // Up to 64 columns a warp keeps 32 keys' gradients whole, and weights in registers.
  if (widest <= 32) return backward_tiling(problem, 64, 128, 4, 1, 4, 32, 2, 2);
  if (widest <= 64) return backward_tiling(problem, 64, 128, 4, 1, 2, 32, 2, 2);
  if (widest <= 128) return backward_tiling(problem, 64, 128, 4, 2, 2, 32, 2, 1);
  return backward_tiling(problem, 64, 64, 2, 4, 2, 16, 2, 1);
}

}  // namespace flashtile::cuda
