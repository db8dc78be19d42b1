// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/kept_list.hpp"
#include "ops/linear/problem.hpp"

namespace flashtile {

/// Gradients of inputs that are the same at all times: (heads) or (heads, ...). There is a sum for
/// each sequence and head, which whoever works on those fills, so that the sum over sequences has
/// one order whoever works.
class ParameterSums {
 public:
  /// Of every such gradient that `args` wants.
  ParameterSums(const LinearProblem& problem, const LinearArgs& args);

  /// Adds to element (head, i) of a member of `args.gradients`, where i is as in load_parameter; to
  /// (head) where it has one dimension. Nothing where it is not wanted.
  void add(const TensorView& gradient, int64_t batch_idx, int64_t head, int64_t i, double value);

  void store() const;

 private:
  struct Parameter {
    const TensorView* gradient;
    int64_t num_heads;
    int64_t num_elements;
    KeptList<double> sums;  ///< (sequence, head, i)
  };
  int64_t batch_size_;
  KeptList<Parameter> parameters_;
};

}  // namespace flashtile
