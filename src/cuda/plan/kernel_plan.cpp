// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/kernel_plan.hpp"

#include <algorithm>

#include "cuda/device/params/attention_params.hpp"
#include "cuda/plan/attention_config.hpp"
#include "cuda/plan/user_expressions.hpp"

namespace flashtile::cuda {
namespace {

/// True when masks besides those by position may differ between sequences.
bool block_map_has_batches(const AttentionProblem& problem) {
  const bool has_lengths = problem.is_packed_q || problem.is_packed_k || problem.has_seqused ||
                           problem.has_leftpad || problem.has_new_keys;
  return has_lengths || reads_variable(problem.user_mask, variant::Variable::kBatch) ||
         (problem.has_block_list &&
          std::max(problem.block_counts.shape[0], problem.block_indices.shape[0]) > 1);
}

bool block_map_has_heads(const AttentionProblem& problem) {
  return reads_variable(problem.user_mask, variant::Variable::kHead) ||
         reads_variable(problem.user_mask, variant::Variable::kHeadKv) ||
         (problem.has_block_list &&
          std::max(problem.block_counts.shape[1], problem.block_indices.shape[1]) > 1);
}

}  // namespace

WorkspaceRegion WorkspaceRegions::take(int64_t bytes) {
  constexpr int64_t kRegionAlignment = 256;
  const WorkspaceRegion region = {used_, bytes};
  used_ += round_up(bytes, kRegionAlignment);
  return region;
}

bool may_overlap(const AttentionProblem& problem) { return problem.gpu->compute_capability >= 90; }

bool has_upper_bound(const AttentionProblem& problem) {
  return problem.window_right.has_value() || !split_mask(problem.user_mask).upper.empty();
}

int64_t groups_per_section(const GpuModel& gpu, int64_t num_groups, int64_t bytes) {
  const int64_t most = std::max<int64_t>(1, gpu.l2_bytes * 6 / 10 / std::max<int64_t>(bytes, 1));
  return ceil_div(num_groups, std::max<int64_t>(1, ceil_div(num_groups, most)));
}

KernelChoice tile_kernel(const GpuModel& gpu, std::string stem, std::string config,
                         int64_t num_ctas, int64_t num_threads, int64_t shared_bytes) {
  constexpr int64_t kLargestGrid = (int64_t{1} << 31) - 1;
  KernelChoice kernel;
  kernel.source = {std::move(stem), std::move(config), gpu.arch, {}};
  kernel.grid = {std::min(num_ctas, kLargestGrid), 1, 1};
  kernel.num_threads = num_threads;
  kernel.shared_bytes = shared_bytes;
  return kernel;
}

KernelChoice strided_kernel(const GpuModel& gpu, std::string stem, std::string config,
                            int64_t num_items) {
  constexpr int64_t kWarps = 4;
  constexpr int64_t kMostCtas = 1 << 14;
  const int64_t num_ctas = std::clamp<int64_t>(ceil_div(num_items, kWarps), 1, kMostCtas);
  return tile_kernel(gpu, std::move(stem), std::move(config), num_ctas, 32 * kWarps, 0);
}

KernelChoice prepare_kernel(const AttentionProblem& problem, int64_t num_lines) {
  return strided_kernel(*problem.gpu, "attention_prepare", "",
                        std::max(num_lines, problem.num_heads / 32));
}

KernelChoice block_map_kernel(const AttentionProblem& problem, const BlockMapPlan& blocks,
                              int64_t num_m_blocks, std::string config) {
  constexpr int64_t kMostCtas = 1 << 16;
  const int64_t num_words = blocks.map_batches * blocks.map_heads * num_m_blocks * blocks.map_words;
  KernelChoice kernel =
      tile_kernel(*problem.gpu, "attention_blocks", std::move(config),
                  std::clamp<int64_t>(num_words, 1, kMostCtas), device::BlockMapShape::kThreads,
                  device::BlockMapShape::kSharedBytes);
  kernel.overlaps_previous = may_overlap(problem);
  return kernel;
}

KernelChoice order_kernel(const AttentionProblem& problem, const BlockMapPlan& blocks) {
  KernelChoice kernel =
      tile_kernel(*problem.gpu, "attention_order", "", blocks.map_batches * blocks.map_heads,
                  device::CostCounts::kThreads, device::CostCounts::kBytes);
  kernel.overlaps_previous = may_overlap(problem);
  return kernel;
}

BlockMapPlan make_block_map_plan(const AttentionProblem& problem, int64_t num_m_blocks,
                                 int64_t block_n, int64_t num_heads) {
  BlockMapPlan blocks;
  blocks.is_on = ScoreFlags(problem).has_block_map() && problem.batch_size > 0 &&
                 problem.max_seqlen_k > 0 && num_m_blocks > 0;
  if (!blocks.is_on) return blocks;
  blocks.map_batches = block_map_has_batches(problem) ? problem.batch_size : 1;
  blocks.map_heads = block_map_has_heads(problem) ? num_heads : 1;
  constexpr int64_t kBlocksPerWord = 16;
  blocks.map_words = ceil_div(ceil_div(problem.max_seqlen_k, block_n), kBlocksPerWord);
  if (!problem.has_block_list) return blocks;
  blocks.list_batches = std::max(problem.block_counts.shape[0], problem.block_indices.shape[0]);
  blocks.list_heads = std::max(problem.block_counts.shape[1], problem.block_indices.shape[1]);
  blocks.list_rows = problem.block_counts.shape[2];
  blocks.list_cols = ceil_div(problem.max_seqlen_k, problem.block_cols);
  blocks.list_words = ceil_div(blocks.list_cols, 32);
  return blocks;
}

}  // namespace flashtile::cuda
