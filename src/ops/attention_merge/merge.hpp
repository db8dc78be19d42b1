// SPDX-License-Identifier: Apache-2.0
//
// attention_merge: arguments, problem, implementations.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "core/op_spec.hpp"
#include "core/registry.hpp"
#include "flashtile/merge.hpp"

namespace flashtile {

struct MergeArgs {
  TensorView out_parts, lse_parts;
  TensorView out, lse;

  bool operator==(const MergeArgs&) const = default;
};

/// Packed rows are one sequence.
struct MergeProblem {
  Device device;
  DType dtype = DType::kF32;
  DType lse_dtype = DType::kF32;  ///< of lse_parts
  DType out_dtype = DType::kF32;
  DType out_lse_dtype = DType::kF32;
  int64_t num_parts = 0;
  int64_t batch_size = 0;
  int64_t seqlen_q = 0;
  int64_t num_heads = 0;
  int64_t head_dim_v = 0;

  int64_t num_rows() const { return batch_size * seqlen_q * num_heads; }
};

struct MergePlan {
  std::string_view implementation;
  int64_t rows_a_task = 0;  ///< 0: no tasks
};
std::string to_string(const MergePlan& plan);

using MergeImplementation = Implementation<MergeProblem, MergePlan, MergeArgs>;

const OpSpec& attention_merge_spec();

/// Double precision and plain loops.
MergeImplementation merge_reference();

/// The CPU backend's implementations, best first (src/cpu/attention_merge.cpp).
std::vector<MergeImplementation> cpu_merge_implementations();
/// The CUDA backend's (src/cuda/registry.cpp).
std::vector<MergeImplementation> cuda_merge_implementations();

/// One (batch, query, head): addresses of its elements. Strides in bytes.
struct MergeRow {
  const char* part = nullptr;  ///< of part 0
  int64_t part_step = 0;       ///< to the next part
  int64_t part_stride = 0;     ///< to the next element
  const char* lse_part = nullptr;
  int64_t lse_step = 0;
  char* out = nullptr;
  int64_t out_stride = 0;
  char* lse = nullptr;  ///< null: not wanted
};

/// Row `index` of [0, num_rows), heads fastest.
MergeRow merge_row(const MergeProblem& problem, const MergeArgs& args, int64_t index);

/// lse and what each part is multiplied by. An empty part has weight 0 and is not to be read, which
/// `is_read` tells from a weight that is too small for its type.
struct MergeWeights {
  std::vector<double> weights;
  std::vector<uint8_t> is_read;
  double lse = -std::numeric_limits<double>::infinity();

  void compute(const MergeRow& row, int64_t num_parts, DType lse_dtype);
};

}  // namespace flashtile
