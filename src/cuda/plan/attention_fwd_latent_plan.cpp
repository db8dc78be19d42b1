// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/attention_fwd_latent_plan.hpp"

#include <algorithm>

#include "cuda/plan/attention_config.hpp"

namespace flashtile::cuda {
namespace {

/// Below, kernels that keep keys and values apart read both from caches as fast.
constexpr int64_t kLeastHeadDim = 320;
constexpr int64_t kMostHeadDim = 576;
/// Of a tile's rows of 128 bytes.
constexpr int64_t kColumns = 64;
/// Registers of two warpgroups for the sums of 64 rows.
constexpr int64_t kMostHeadDimV = 512;

/// Keys that the copy engine takes at once: all of a block, or a page's; 0 where it cannot, or
/// where threads are faster. They read whole rows, which memory likes better than pieces of 128
/// bytes; where a sequence's tiles share its keys, or pages are large, time to copy counts more.
int box_rows(const AttentionProblem& problem, int block_m, int block_n) {
  const bool is_single_tile = problem.max_seqlen_q * problem.group_size() <= block_m;
  if (is_single_tile && problem.page_size < block_n) return 0;
  constexpr int64_t kMostRows = int64_t{1} << 30;  // as 32-bit coordinates, with room for a block
  if (std::max(problem.total_k, problem.max_seqlen_k) > kMostRows) return 0;
  for (size_t d = 0; d < static_cast<size_t>(problem.k.ndim); ++d) {
    if (problem.k.shape[d] == 0 || (problem.k.shape[d] > 1 && problem.k.strides[d] <= 0)) return 0;
  }
  if (problem.page_size == 0) return block_n;
  const int64_t rows = std::min<int64_t>(problem.page_size, block_n);
  const bool fits = rows % 8 == 0 && block_n % rows == 0 && problem.page_size % rows == 0;
  return fits && !problem.has_leftpad ? static_cast<int>(rows) : 0;
}

/// 64 rows of queries, two blocks of 64 keys on their way or in use.
ForwardTiling latent_tiling(const AttentionProblem& problem) {
  ForwardTiling tiling;
  device::ForwardShape& shape = tiling.shape;
  shape.head_dim = static_cast<int>(problem.head_dim);
  shape.head_dim_v = static_cast<int>(round_up(problem.head_dim_v, 128));
  shape.block_m = 64;
  shape.block_n = 64;
  shape.warps_m = 4;
  shape.warps_n = 2;
  shape.num_stages = 2;
  shape.shares_weights = true;
  shape.values_in_keys = true;
  tiling.box_rows = box_rows(problem, shape.block_m, shape.block_n);
  return tiling;
}

}  // namespace

std::string refuse_attention_fwd_latent_sm90(const AttentionProblem& problem) {
  const std::string refusal = refuse_hopper(problem);
  if (!refusal.empty()) return refusal;
  if (!problem.values_in_keys) return "takes values that are the first columns of keys";
  if (problem.dtype != DType::kF16 && problem.dtype != DType::kBF16) {
    return "takes f16 and bf16, not " + std::string(dtype_name(problem.dtype));
  }
  if (problem.head_dim < kLeastHeadDim || problem.head_dim > kMostHeadDim ||
      problem.head_dim % kColumns != 0 || problem.head_dim_v > kMostHeadDimV) {
    return "takes a head_dim of " + std::to_string(kLeastHeadDim) + ", " +
           std::to_string(kLeastHeadDim + kColumns) + ", ... " + std::to_string(kMostHeadDim) +
           " and a head_dim_v of at most " + std::to_string(kMostHeadDimV);
  }
  if (problem.has_new_keys || problem.rotary_dim > 0) return "has no new keys or rotary embedding";
  if (problem.wants_weights) return "has no weights";
  if (!(problem.softmax_scale > 0)) return "takes a positive softmax_scale only";
  for (const auto& [name, layout] : {std::pair{"q", &problem.q}, std::pair{"k", &problem.k}}) {
    if (copy_bytes(*layout) == 16) continue;
    return std::string(name) + " must have contiguous rows whose addresses are multiples of 16 " +
           "bytes";
  }
  return {};
}

AttentionPlan plan_attention_fwd_latent_sm90(const AttentionProblem& problem) {
  return plan_attention_fwd(problem, latent_tiling(problem));
}

}  // namespace flashtile::cuda
