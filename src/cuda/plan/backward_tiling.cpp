// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/backward_tiling.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "cuda/plan/attention_config.hpp"

namespace flashtile::cuda {
namespace {

struct BackwardChoice {
  int64_t columns;  ///< at most, of keys and of values
  BackwardBlocks blocks;
};

/// Up to 64 columns a warp keeps the gradients of 32 keys whole, and weights in registers; above,
/// as many warps share them as hold 64 columns each.
constexpr BackwardChoice kChoices[] = {
    {32, {64, 128, 4, 1, 4, 1, 32, 2, 2}},  {64, {64, 128, 4, 1, 2, 1, 32, 2, 2}},
    {128, {64, 128, 4, 2, 2, 1, 32, 2, 1}}, {128, {64, 64, 2, 2, 2, 1, 32, 1, 2}},
    {256, {64, 64, 2, 4, 2, 1, 16, 2, 1}},  {256, {64, 64, 2, 4, 2, 1, 16, 1, 1}},
    {256, {32, 32, 2, 2, 2, 1, 16, 1, 1}},
};

}  // namespace

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
  // The first of those for as many columns that fits.
  for (const auto& [columns, blocks] : kChoices) {
    if (widest > columns) continue;
    const BackwardTiling tiling = backward_tiling(problem, blocks);
    if (tiling.shape.shared_bytes() <= problem.gpu->shared_bytes_per_cta) return tiling;
  }
  return backward_tiling(problem, std::rbegin(kChoices)->blocks);
}

}  // namespace flashtile::cuda
