// SPDX-License-Identifier: Apache-2.0
//
// How the portable forward runs: which tile shape on which architecture, how the grid covers the
// work, and which kernels are launched. Made from the problem alone.
#pragma once

#include <string>

#include "cuda/device/params/shared_bytes.hpp"
#include "ops/attention/problem.hpp"

namespace flashtile::cuda {

/// A CTA's shape and what goes with it.
struct ForwardTiling {
  device::ForwardShape shape;
  int slice = 64;    ///< keys that a warp takes from products to weights at once
  int min_ctas = 1;  ///< of a multiprocessor: bounds the registers of a thread
  bool query_in_registers = false;
  bool runs_ahead = false;  ///< products one key block ahead of weights
  int num_splits = 0;       ///< parts of the keys; 0: as many as fill the GPU
  int box_rows = 0;         ///< keys that the copy engine takes at once; 0: threads copy
};

/// A part of the workspace; 0 bytes: not needed.
struct WorkspaceRegion {
  int64_t offset = 0;
  int64_t bytes = 0;
};

/// The map of key blocks that query tiles visit, and the listed blocks as bits.
struct BlockMapPlan {
  bool is_on = false;
  int64_t map_batches = 0, map_heads = 0, map_words = 0;
  int64_t list_batches = 0, list_heads = 0, list_rows = 0, list_cols = 0, list_words = 0;

  int64_t num_lines() const { return list_batches * list_heads * list_rows; }
  int64_t list_bytes() const { return num_lines() * list_words * 4; }
  int64_t map_bytes(int64_t num_m_blocks) const {
    return map_batches * map_heads * num_m_blocks * map_words * 4;
  }
};

/// The plan with its parts, as the launcher needs them.
struct ForwardPlan {
  ForwardTiling tiling;
  bool packs_heads = false;  ///< query heads of a group are rows of one tile
  bool is_descending = false;
  bool has_order = false;    ///< of query blocks, from the map of blocks
  int64_t num_m_blocks = 0;  ///< of the longest sequence
  int64_t num_heads_in_grid = 1;
  int64_t num_pairs = 0;  ///< (sequence, head)
  int64_t section_heads = 1;
  int64_t num_splits = 1;
  bool merges_in_cluster = false;  ///< splits of a tile are a cluster; else they are combined
  int64_t num_v_parts = 1;
  int64_t num_ctas = 0;
  int64_t combine_ctas = 0;   ///< of each sequence
  int64_t combine_warps = 1;  ///< that share a row
  BlockMapPlan blocks;
  WorkspaceRegion partial_out, partial_lse, listed, map, order;
  WorkspaceRegion turned_q;  ///< queries after rotary embedding
  WorkspaceRegion lse;       ///< for weights, where the caller wants no lse
  int64_t workspace_bytes = 0;
};

/// The first condition that the portable forward does not meet.
std::string refuse_attention_fwd(const AttentionProblem& problem);

ForwardPlan make_forward_plan(const AttentionProblem& problem);

/// The same with a tile shape from outside, for tuning and tests.
ForwardPlan make_forward_plan(const AttentionProblem& problem, const ForwardTiling& tiling);

/// The generated Config of the forward kernel.
std::string forward_config(const AttentionProblem& problem, const ForwardPlan& plan);

/// The kernels in order of launch.
std::vector<KernelChoice> forward_kernels(const AttentionProblem& problem, const ForwardPlan& plan);

AttentionPlan plan_attention_fwd(const AttentionProblem& problem);
AttentionPlan plan_attention_fwd(const AttentionProblem& problem, const ForwardTiling& tiling);

}  // namespace flashtile::cuda
