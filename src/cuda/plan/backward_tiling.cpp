// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/backward_tiling.hpp"

#include <algorithm>
#include <numeric>

#include "cuda/plan/attention_config.hpp"

namespace flashtile::cuda {
namespace {

struct BackwardChoice {
  int64_t columns;  ///< at most, of keys and of values
  bool is_short;  ///< for few queries only; up to 64 columns also for some more with a causal mask
  BackwardBlocks blocks;
};

/// Up to 64 columns a warp keeps the gradients of 32 keys whole, and weights in registers; above,
/// as many warps share them as hold 64 columns each.
constexpr BackwardChoice kChoices[] = {
    {32, true, {64, 128, 4, 1, 4, 1, 32, 1, 2}},   {32, false, {128, 128, 4, 1, 4, 1, 32, 1, 2}},
    {32, false, {64, 128, 4, 1, 4, 1, 32, 1, 2}},  {64, true, {64, 128, 4, 1, 2, 1, 32, 1, 2}},
    {64, false, {128, 128, 4, 1, 2, 1, 32, 1, 2}}, {64, false, {64, 128, 4, 1, 2, 1, 32, 1, 2}},
    {128, true, {64, 64, 2, 2, 2, 1, 32, 1, 2}},   {128, false, {128, 128, 4, 2, 4, 1, 32, 1, 1}},
    {128, false, {64, 64, 2, 2, 2, 1, 32, 1, 2}},  {128, false, {64, 128, 4, 2, 2, 1, 32, 2, 1}},
    {256, false, {128, 64, 2, 4, 4, 2, 32, 1, 1}}, {256, false, {64, 64, 2, 4, 2, 1, 16, 2, 1}},
    {256, false, {64, 64, 2, 4, 2, 1, 16, 1, 1}},  {256, false, {32, 32, 2, 2, 2, 1, 16, 1, 1}},
    {576, false, {64, 32, 2, 4, 4, 2, 16, 1, 1}},
};

bool fits(const BackwardTiling& tiling, int num_ctas, const GpuModel& gpu) {
  constexpr int64_t kReservedBytes = 1024;  // of each CTA, for the driver
  const int64_t bytes = tiling.shape.shared_bytes();
  return bytes <= gpu.shared_bytes_per_cta &&
         num_ctas * (bytes + kReservedBytes) <= gpu.shared_bytes_per_sm;
}

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

std::optional<BackwardTiling> choose_backward_tiling(const AttentionProblem& problem) {
  const int64_t widest = std::max(problem.head_dim, problem.head_dim_v);
  const bool is_narrow_causal = widest <= 64 && problem.window_right.has_value();
  const bool is_short = problem.max_seqlen_q <= (is_narrow_causal ? 512 : 64);
  // The first that fits of those for as many columns, if possible beside as many CTAs as it is for.
  for (const int64_t columns : {32, 64, 128, 256, 576}) {
    if (widest > columns) continue;
    for (const bool shares_sm : {true, false}) {
      for (const BackwardChoice& choice : kChoices) {
        if (choice.columns != columns || (choice.is_short && !is_short)) continue;
        const BackwardTiling tiling = backward_tiling(problem, choice.blocks);
        if (fits(tiling, shares_sm ? tiling.min_ctas : 1, *problem.gpu)) return tiling;
      }
    }
  }
  return std::nullopt;
}

}  // namespace flashtile::cuda
