// SPDX-License-Identifier: Apache-2.0
//
// Parameters of layer parts as floats, and the sums of their gradients.
#pragma once

#include "core/workspace.hpp"
#include "cpu/layer_part_layout.hpp"

namespace flashtile::cpu {

/// What all tasks share.
struct PartShared {
  float* parameters;
  double* sums;  ///< of each task

  PartShared(const PartSizes& sizes, int64_t num_tasks, WorkspaceCursor& cursor) {
    parameters = cursor.take<float>(sizes.parameter_numbers());
    sums = cursor.take<double>(sizes.has_sums ? num_tasks * sizes.parameter_numbers() : 0);
  }
};

/// Whether a rate of log_decay_gate times a softplus that float32 rounds to 0 is more than nothing.
bool has_large_rate(const LinearArgs& args);

/// Parameters lie in rows of floats, one for each kind, in the order of columns.
class PartParameters {
 public:
  PartParameters(const LinearProblem& problem, const LinearArgs& args, const PartLayout& layout,
                 const PartShared& shared, int64_t num_tasks)
      : problem_(problem),
        args_(args),
        layout_(layout),
        sizes_(layout.sizes()),
        shared_(shared),
        num_tasks_(num_tasks) {}

  void load() const;
  /// After all tasks: gradients, summed over tasks in their order.
  void store_sums() const;

  /// Where those of some columns are.
  int64_t index_of(const ColumnBlock& columns) const {
    if (sizes_.part == LinearFamily::kGatedNorm) return 0;
    return layout_.parameter_index(columns.head * sizes_.head_dim, 0) + columns.first;
  }
  const float* values() const { return shared_.parameters; }
  double* sums_of(int64_t task) const { return shared_.sums + task * sizes_.parameter_numbers(); }

 private:
  void spread(float* row) const;
  double sum_of(int64_t row, int64_t n) const;

  const LinearProblem& problem_;
  const LinearArgs& args_;
  const PartLayout& layout_;
  const PartSizes& sizes_;
  PartShared shared_;
  int64_t num_tasks_;
};

}  // namespace flashtile::cpu
