// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the attention kernels from the arguments of a call; forward and backward share them.
#pragma once

#include <vector>

#include "cuda/device/params/attention_params.hpp"
#include "cuda/device/params/tensor_map.hpp"
#include "cuda/plan/attention_fwd_plan.hpp"
#include "flashtile/context.hpp"
#include "ops/attention/args.hpp"
#include "ops/attention/problem.hpp"

namespace flashtile::cuda {

/// Where a part of the workspace begins; null where it is not needed.
template <class T>
T* region_at(char* workspace, const WorkspaceRegion& region) {
  return region.bytes == 0 ? nullptr : reinterpret_cast<T*>(workspace + region.offset);
}

/// Divides by `value`, which may be 0 where nothing is divided.
device::DivisorParam divisor_param(int64_t value);

/// Divides a grid of `num_pairs` (batch, head) pairs, each with `num_units` CTAs, into sections.
void set_sections(device::GridParam& grid, int64_t num_pairs, int64_t num_units, int64_t section);

/// Rows of (batch, seqlen, heads, dim) or (total, heads, dim); of nothing where there is no tensor.
device::RowsParam rows_param(const TensorView& tensor);

/// Which rows sequences have, and masks by position.
device::LengthsParam lengths_param(const AttentionProblem& problem, const AttentionArgs& args);
device::PositionParam position_param(const AttentionProblem& problem);

/// Numbers of (batch, heads, seqlen_q) or (heads, total_q).
device::RowScalarsParam row_scalars_param(const TensorView& tensor);

/// Numbers of (heads) or (batch, heads).
device::HeadScalarsParam head_scalars_param(const TensorView& tensor);

/// (batch, heads, seqlen_q, seqlen_k) with broadcast dimensions.
device::ScoresParam scores_param(const TensorView& tensor);

/// Boxes of 64 columns and `box_rows` rows of one head of (batch, seqlen, heads, dim), or of
/// (total, heads, dim). Made in the current CUDA context.
device::TensorMapParam row_boxes(const TensorView& tensor, int box_rows);

/// The same of (batch, heads, seqlen_q, seqlen_k) with broadcast dimensions: boxes of keys of
/// `box_rows` queries.
device::TensorMapParam bias_boxes(const TensorView& bias, int box_rows, int box_columns);

/// An aux tensor, or its gradient.
device::AuxParam aux_param(const TensorView& tensor);

/// The lists of blocks of a call, if it has any, their bits and the map of blocks.
device::BlocksParam blocks_param(const AttentionArgs& args, const BlockMapPlan& plan,
                                 unsigned int* listed, unsigned int* map);

/// Everything that does not depend on a plan. `grid` and what points into the workspace are the
/// launcher's.
device::AttentionParams attention_params(const AttentionProblem& problem,
                                         const AttentionArgs& args);

/// What attention_append is given; `turned_q` is memory for the queries after rotary embedding.
device::AppendParams append_params(const AttentionProblem& problem, const AttentionArgs& args,
                                   char* turned_q);

/// The second argument of kernels: aux tensors and scalar parameters, as the generated program
/// declares them.
class ExpressionArguments {
 public:
  ExpressionArguments(const AttentionProblem& problem, const AttentionArgs& args);

  void* data() { return bytes_.data(); }

 private:
  std::vector<uint64_t> bytes_;  ///< ExpressionParams<numbers of the program>
};

/// The caller's workspace, aligned to 256 bytes; throws Error that names the size where it is
/// smaller than `bytes`. Null where nothing is needed.
char* device_workspace(std::string_view op, const Context& context, int64_t bytes);

}  // namespace flashtile::cuda
