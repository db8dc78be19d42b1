// SPDX-License-Identifier: Apache-2.0
//
// Gradients of the aux tensors that a user's score reads. Sums are double copies of a tensor, one
// for each slot; a task adds to the slot of its number, and tasks of one slot run in order, so the
// bits depend on the problem alone. Large tensors get one slot: their tasks run one by one.
#pragma once

#include <vector>

#include "core/kept_list.hpp"
#include "cpu/kernels/attention_types.hpp"
#include "cpu/score_programs.hpp"

namespace flashtile::cpu {

class AuxGradients {
 public:
  /// Workspace of the sums of a plan's tasks.
  static int64_t bytes(const AttentionProblem& problem, int64_t num_tasks);

  AuxGradients(const AttentionProblem& problem, const AttentionPlan& plan,
               const ScorePrograms& programs, const AttentionArgs& args, char* workspace);

  bool is_wanted() const { return has_sites_; }
  int64_t num_slots() const { return num_slots_; }
  /// Points the kernel at the sums of a slot.
  void fill(int64_t slot, ScoreGradients* gradients) const;
  /// Adds the slots in their order and stores the gradients.
  void store() const;

 private:
  struct Target {
    size_t aux;  ///< by AttentionArgs::aux
    TensorView tensor;
    double* sums;  ///< (slots, elements); null where no score is looked at
  };

  void bind(const std::vector<GradientSite>& sites, KeptList<AuxSum>* bound) const;

  bool has_sites_ = false;
  int64_t num_slots_ = 1;
  KeptList<Target> targets_;
  KeptList<AuxSum> sites_;  ///< (slots, sites)
  KeptList<AuxSum> guarded_sites_;
};

}  // namespace flashtile::cpu
