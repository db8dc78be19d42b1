// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/gpu_model.hpp"
#include "core/kernel_choice.hpp"
#include "ops/attention/args.hpp"
#include "variant/expr/expr.hpp"

namespace flashtile {

constexpr std::string_view attention_op_name(bool is_backward) {
  return is_backward ? "attention_bwd" : "attention_fwd";
}

/// How a tensor lies in memory, without the memory.
struct TensorLayout {
  DType dtype = DType::kNone;  ///< kNone: the call does not have this tensor
  int32_t ndim = 0;
  std::array<int64_t, TensorView::kMaxDims> shape{};
  std::array<int64_t, TensorView::kMaxDims> strides{};  ///< elements
  int64_t address_alignment = 0;                        ///< largest power of two, at most 256

  explicit operator bool() const { return dtype != DType::kNone; }
};

TensorLayout layout_of(const TensorView& tensor);

/// The seed of a call as far as the host knows it: that of a tensor in host memory, else the
/// option.
uint64_t dropout_seed_of(const AttentionArgs& args);

/// Dropout as the kernels use it. Weights whose sixteen random bits are below `threshold` are
/// dropped, the others are multiplied by `gain`.
struct Dropout {
  bool is_on = false;
  uint32_t threshold = 0;
  double gain = 1;
  uint64_t seed = 0;
  uint32_t offset = 0;
  bool has_seed_tensor = false;  ///< on a GPU kernels read it, in the place of `seed`
};

/// What attention is asked for, in numbers the host knows: no tensor data, no addresses. Plans are
/// made from this alone.
struct AttentionProblem {
  bool is_backward = false;
  Device device;
  const GpuModel* gpu = nullptr;  ///< what a plan for a GPU is made for; null on the CPU
  DType dtype = DType::kF32;

  int64_t batch_size = 0;
  int64_t max_seqlen_q = 0;
  int64_t max_seqlen_k = 0;
  int64_t total_q = 0;  ///< rows of q over all sequences
  int64_t total_k = 0;  ///< stored rows of k over all sequences or pages
  int64_t num_heads = 0;
  int64_t num_heads_kv = 0;
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;
  int64_t page_size = 0;  ///< 0: not paged
  bool has_block_table = false;
  bool is_packed_q = false;
  bool is_packed_k = false;
  bool has_seqused = false;
  bool has_leftpad = false;
  bool values_in_keys = false;  ///< v is the first columns of k, in the same memory
  bool is_quantised = false;    ///< k and v are i8 or e4m3
  bool has_new_keys = false;    ///< k_new and v_new are written into k and v first
  int64_t max_seqlen_new = 0;
  int64_t rotary_dim = 0;  ///< 0: none
  bool rotary_interleaved = false;

  TensorLayout q, k, v, out, lse, bias, dout, dq, dk, dv, dbias;
  TensorLayout block_counts, block_indices, rotary_cos, k_scale, v_scale;

  double softmax_scale = 1;
  std::optional<double> softcap;
  std::optional<int64_t> query_offset;  ///< nothing: seqlen_k - seqlen_q of each sequence
  std::optional<int64_t> window_left;
  std::optional<int64_t> window_right;  ///< 0 when causal
  std::optional<int64_t> attention_chunk;
  bool has_alibi = false;
  bool has_sink = false;
  bool has_block_list = false;
  int64_t block_rows = 0;
  int64_t block_cols = 0;
  Dropout dropout;
  bool deterministic = false;
  bool batch_invariant = false;

  /// A scalar that kernels in float32 cannot compute with, for a person: "softcap is 1e+39, ...";
  /// empty: none.
  std::string beyond_float;

  variant::Expr user_score;  ///< empty: none
  variant::Expr user_mask;   ///< empty: none

  bool wants_lse = false;
  bool wants_max_logit = false;
  bool wants_weights = false;  ///< the weights or dropout mask, quadratic on request
  size_t num_aux = 0;          ///< aux tensors of the caller, whether expressions read them or not
  bool wants_aux_gradient = false;
  int64_t aux_gradient_elements = 0;  ///< of all tensors whose gradient is wanted
  bool wants_alibi_gradient = false;
  bool wants_sink_gradient = false;

  /// Positions matter by causal or a window: each query turns by its own.
  bool is_local() const { return window_left || window_right; }
  int64_t group_size() const { return num_heads / num_heads_kv; }
};

class IndexChecks;

/// Checks the arguments (table, then what the table cannot say, then tensor data that lies on the
/// host) and gives the problem. Throws Error. Where `index_checks` is given, a new one becomes that
/// of the problem.
AttentionProblem make_attention_problem(const AttentionArgs& args, bool is_backward,
                                        IndexChecks* index_checks = nullptr);

/// For explain on a call whose tensors have no memory: as above, without addresses or data.
AttentionProblem make_attention_problem_from_shapes(const AttentionArgs& args, bool is_backward);

/// For a call like the one that `problem` was made of, but for the data of its tensors. False where
/// host lengths make another problem of it. Throws Error, as above, where host data is wrong.
bool has_lengths_of(const AttentionProblem& problem, const AttentionArgs& args,
                    IndexChecks* index_checks);

/// How an implementation runs a problem; printable.
struct AttentionPlan {
  std::string_view implementation;
  int64_t block_m = 0;
  int64_t block_n = 0;
  bool is_decode = false;  ///< few queries; keys are read where they lie
  int64_t num_splits = 1;  ///< parts of the keys that are worked on independently
  int64_t num_tasks = 0;
  int64_t workspace_bytes = 0;        ///< fixed part
  int64_t worker_bytes = 0;           ///< further bytes for each worker
  std::vector<KernelChoice> kernels;  ///< what a GPU launches, in order; empty on the CPU
  /// What the implementation's launch wants to know besides, of a type of its own; may be null.
  std::shared_ptr<const void> details;

  /// What a launch with that many workers takes. Throws Error where 64 bits do not count it.
  int64_t bytes_for(std::string_view op, int64_t num_workers) const;
};

std::string to_string(const AttentionPlan& plan);

}  // namespace flashtile
