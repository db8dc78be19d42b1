// SPDX-License-Identifier: Apache-2.0
//
// How the portable backward runs: tile shapes, grids, the workspace and the kernels. Made from the
// problem alone.
//
// There are two ways. Products in 16 bits up to some head dim: one kernel whose CTAs own keys,
// which adds dq up atomically. Everything else: a kernel that owns queries gives dq (and what the
// former cannot: an exact delta, the gradients of slopes and aux tensors), one that owns keys dk
// and dv.
#pragma once

#include <optional>
#include <string>

#include "cuda/device/params/backward_shape.hpp"
#include "cuda/plan/attention_fwd_plan.hpp"
#include "cuda/plan/backward_stream_plan.hpp"
#include "ops/attention/problem.hpp"

namespace flashtile::cuda {

/// A CTA's shape and what goes with it.
struct BackwardTiling {
  device::BackwardShape shape;
  int min_ctas = 1;  ///< of a multiprocessor: bounds the registers of a thread
};

/// A map of blocks for kernels of one block size.
struct BackwardMap {
  int64_t num_m_blocks = 0;  ///< of the longest sequence
  int64_t num_n_blocks = 0;
  BlockMapPlan blocks;
  WorkspaceRegion map;
};

/// The plan with its parts, as the launcher needs them.
struct BackwardPlan {
  std::optional<BackwardTiling> tiling;  ///< of the kernel for 16 bits, where that runs
  StreamTiling keys, queries;            ///< of the others
  bool sums_dq = true;                   ///< atomically
  bool finishes_dq = false;              ///< in the kernel that sums it
  bool finds_delta = false;              ///< as the sum of P dP
  bool visits_queries = false;           ///< for dq, slopes or aux tensors
  bool copies_dout = false;
  int64_t section_pairs = 1;  ///< (sequence, kv head) pairs that are worked on together
  int64_t padded_rows = 0;    ///< of a head, over all sequences
  bool is_main_only = false;  ///< for timing: without the kernels before and after
  BackwardMap tile, stream;   ///< of both ways
  WorkspaceRegion lse, delta, odd_rows, dq_sums, finished, dout, listed;
  int64_t num_sink_parts = 0;
  int64_t num_slope_parts = 0;  ///< of a head of a sequence
  /// Parts of gradients of sinks, then of slopes.
  WorkspaceRegion parts;
  /// Sums of aux tensors, then the largest numbers that each sums.
  WorkspaceRegion aux_sums;
  WorkspaceRegion cleared;  ///< both
  int64_t workspace_bytes = 0;

  /// Columns of a row of sums of dq.
  int64_t padded_head_dim() const { return tiling ? tiling->shape.head_dim : keys.shape.head_dim; }
  bool streams() const { return !tiling || finds_delta || visits_queries; }
};

/// The first condition that the portable backward does not meet.
std::string refuse_attention_bwd(const AttentionProblem& problem);

BackwardPlan make_backward_plan(const AttentionProblem& problem);

/// The same with a tile shape from outside, for tuning and tests.
BackwardPlan make_backward_plan(const AttentionProblem& problem,
                                const std::optional<BackwardTiling>& tiling);

/// The kernels in order of launch.
std::vector<KernelChoice> backward_kernels(const AttentionProblem& problem,
                                           const BackwardPlan& plan);

AttentionPlan plan_attention_bwd(const AttentionProblem& problem);

}  // namespace flashtile::cuda
