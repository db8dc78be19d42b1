// SPDX-License-Identifier: Apache-2.0
//
// What a backend gives for a family of linear attention.
#pragma once

#include <string>
#include <vector>

#include "ops/linear/problem.hpp"

namespace flashtile {

struct LinearPlan {
  std::string_view implementation;
  int64_t chunk_size = 0;  ///< rows that are worked on together; 0: one by one
  int64_t num_tasks = 1;
  int64_t bytes = 0;           ///< workspace
  int64_t bytes_a_worker = 0;  ///< workspace of each worker besides

  int64_t bytes_for(std::string_view, int64_t num_workers) const {
    return bytes + bytes_a_worker * num_workers;
  }
};
std::string to_string(const LinearPlan& plan);

// Names of implementations are suffixes here ("reference", "avx512"); the list of an op puts the
// op's name before them.

/// An op's own reference; for a step that of its forward.
LinearImplementation linear_reference(const LinearOp& op, LinearPass pass);

/// The arguments of a step as those of a forward with one row in each sequence, whose initial and
/// final states are the whole pool; state_slots stays.
LinearArgs one_row_args(const LinearOp& op, const LinearArgs& args);

/// A step by an implementation of the forward.
void launch_step(const LinearImplementation& forward, const LinearProblem& problem,
                 const LinearArgs& args, const Context& context);

/// The CPU backend's implementations that this machine can run, best first (src/cpu).
std::vector<LinearImplementation> cpu_linear_implementations(const LinearOp& op, LinearPass pass);

}  // namespace flashtile
