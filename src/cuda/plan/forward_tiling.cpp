// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/forward_tiling.hpp"

#include <algorithm>

#include "cuda/plan/attention_config.hpp"

namespace flashtile::cuda {
namespace {

ForwardTiling tiling_of(const AttentionProblem& problem, int block_m, int block_n, int warps_m,
                        int warps_n, int num_stages, int min_ctas) {
  ForwardTiling tiling;
  tiling.shape.element_bytes = static_cast<int>(dtype_bytes(problem.dtype));
  tiling.shape.head_dim = static_cast<int>(round_up(problem.head_dim, 16));
  tiling.shape.head_dim_v = static_cast<int>(round_up(problem.head_dim_v, 16));
  tiling.shape.block_m = block_m;
  tiling.shape.block_n = block_n;
  tiling.shape.warps_m = warps_m;
  tiling.shape.warps_n = warps_n;
  tiling.shape.num_stages = num_stages;
  tiling.slice = std::min(block_n / warps_n, problem.dtype == DType::kF32 ? 32 : 64);
  tiling.min_ctas = min_ctas;
  return tiling;
}

/// 16-bit elements, as fast as it goes with enough shared memory.
ForwardTiling half_tiling(const AttentionProblem& problem, int64_t rows) {
  const int64_t widest = std::max(problem.head_dim, problem.head_dim_v);
  // Dropout's generator serves 32 keys at a time.
  if (rows <= 16) return tiling_of(problem, 16, problem.dropout.is_on ? 128 : 64, 1, 4, 2, 1);
  if (rows <= 64) return tiling_of(problem, 64, 64, 4, 1, 2, widest <= 128 ? 2 : 1);
  if (widest <= 64) return tiling_of(problem, 128, 64, 4, 1, 2, 2);
  if (widest <= 128) return tiling_of(problem, 128, 64, 4, 1, 2, 2);
  return tiling_of(problem, 128, 64, 8, 1, 2, 1);
}

ForwardTiling float_tiling(const AttentionProblem& problem, int64_t rows) {
  if (rows <= 16) return tiling_of(problem, 16, problem.dropout.is_on ? 128 : 64, 1, 4, 2, 1);
  const int64_t widest = std::max(problem.head_dim, problem.head_dim_v);
  return tiling_of(problem, 64, 32, 4, 1, 2, widest <= 64 ? 2 : 1);
}

}  // namespace

ForwardTiling choose_forward_tiling(const AttentionProblem& problem, bool may_pack) {
  const int64_t rows = problem.max_seqlen_q * (may_pack ? problem.group_size() : 1);
  ForwardTiling tiling =
      problem.dtype == DType::kF32 ? float_tiling(problem, rows) : half_tiling(problem, rows);
  // Smaller key blocks, then fewer rows, until it fits.
  device::ForwardShape& shape = tiling.shape;
  const int least_n = (problem.dropout.is_on ? 32 : 16) * shape.warps_n;
  while (shape.shared_bytes() > problem.gpu->shared_bytes_per_cta) {
    if (shape.block_n > least_n) {
      shape.block_n /= 2;
    } else if (shape.warps_m > 1) {
      shape.block_m /= 2;
      shape.warps_m /= 2;
    } else {
      break;
    }
    tiling.slice = std::min(tiling.slice, shape.block_n / shape.warps_n);
  }
  return tiling;
}

}  // namespace flashtile::cuda
