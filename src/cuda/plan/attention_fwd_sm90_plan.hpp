// SPDX-License-Identifier: Apache-2.0
//
// How the Hopper forward runs: the shape of its CTAs, the order of tiles, and what it leaves to the
// portable kernel. Made from the problem alone.
#pragma once

#include <string>
#include <vector>

#include "cuda/device/params/sm90_params.hpp"
#include "cuda/plan/attention_fwd_plan.hpp"
#include "ops/attention/problem.hpp"

namespace flashtile::cuda {

/// A CTA's shape and what goes with it.
struct Sm90Tiling {
  device::Sm90Shape shape;
  /// Tiles of the same rows that share the columns of values, each with scores of its own.
  int num_value_parts = 1;
  device::Sm90Reference reference = device::Sm90Reference::kMaximum;
  bool query_in_registers = false;
  bool takes_turns = true;  ///< warpgroups start their products one after the other
  bool holds_back = false;  ///< exponentials come before the wait for values in the machine code
  bool is_dynamic = false;  ///< CTAs take tiles as they get done, not in turns
  int copy_registers = 0;
  int compute_registers = 0;
  int64_t section_bytes = 0;  ///< keys and values of the heads that are worked on together
  /// The same of the last ones, more of them: so that all CTAs end with short tiles.
  int64_t last_section_bytes = 0;
};

struct Sm90ForwardPlan {
  Sm90Tiling tiling;
  bool has_diagonal = false;  ///< rows see keys up to a diagonal
  bool has_lengths = false;   ///< device memory says which rows a sequence has
  int64_t num_m_blocks = 0;
  int64_t num_pairs = 0;  ///< (batch, head)
  int64_t section_pairs = 1;
  int64_t last_section = 0;  ///< number of the section that holds all pairs from its first one on
  int64_t num_tiles = 0;
  int64_t num_ctas = 0;
  bool can_fail = false;  ///< tiles may have to be worked out again
  BlockMapPlan blocks;
  /// Packed queries, many tiles: query blocks that sequences have at most. 0: they are not listed.
  int64_t list_capacity = 0;
  int64_t list_section = 1;  ///< heads of a section of their list
  WorkspaceRegion counter, next_failed, listed, map, num_listed, tiles;
  int64_t workspace_bytes = 0;
};

/// The first condition that the Hopper forward does not meet.
std::string refuse_attention_fwd_sm90(const AttentionProblem& problem);

/// Why another kernel is faster; empty: it is not. Of problems that this one takes.
std::string leave_to_portable(const AttentionProblem& problem);

Sm90Tiling choose_sm90_tiling(const AttentionProblem& problem);

/// Rows of keys that one copy takes: all of a block, or a page's.
int sm90_page_rows(const AttentionProblem& problem, int block_n);

/// With a shape from outside, for tuning and tests.
Sm90ForwardPlan make_sm90_plan(const AttentionProblem& problem, const Sm90Tiling& tiling);

/// The kernel with its generated Config, behind those that prepare what it reads.
std::vector<KernelChoice> sm90_kernels(const AttentionProblem& problem,
                                       const Sm90ForwardPlan& plan);

AttentionPlan plan_attention_fwd_sm90(const AttentionProblem& problem);

}  // namespace flashtile::cuda
