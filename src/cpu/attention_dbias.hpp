// SPDX-License-Identifier: Apache-2.0
//
// The gradient of bias. Where each (batch, head) has its own plane, the tile that is worked on
// anyway writes it. Where planes are shared, whoever owns a piece of the gradient works out the
// scores of all that read it: two more products, no float32 copy of the bias, a fixed order.
#pragma once

#include "cpu/attention_bwd_wave.hpp"

namespace flashtile::cpu {

/// True when some element of bias is read by several (batch, head).
bool bias_gradient_is_shared(const AttentionArgs& args);

/// Bias gradient of one key block of one head that owns its plane.
class DirectBiasGradient {
 public:
  DirectBiasGradient(const AttentionArgs& args, const Sequence& sequence, int64_t head,
                     int64_t k_begin, int64_t k_end);

  bool is_wanted() const { return rows_.data != nullptr; }
  /// Tells the kernel where to write or to sum.
  void fill(ScoreGradients* gradients);
  /// Stores sums over queries, where a plane has one row.
  void store() const;

 private:
  Rows rows_;
  DType dtype_;
  bool has_one_row_ = false;
  int64_t k_begin_;
  KeptList<double> columns_;
};

/// The whole gradient of a bias with shared planes.
void sum_shared_bias_gradient(const AttentionCall& call, const AttentionKernels& all_kernels,
                              const OperandKernels& kernels, const AttentionPlan& plan,
                              const BwdShape& shape, const RowStats& stats, const Context& context);

}  // namespace flashtile::cpu
