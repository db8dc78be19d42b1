// SPDX-License-Identifier: Apache-2.0
//
// A call of a linear-attention op in numbers that the host knows, without data.
#pragma once

#include "ops/linear/op.hpp"

namespace flashtile {

/// State heads are the heads of v, or the channels of a scan. Where q has more (grouped queries),
/// several output heads read one state; where q and k have fewer (grouped values), several states
/// share a query and a key.
struct LinearProblem {
  const LinearOp* op = nullptr;
  LinearPass pass = LinearPass::kForward;
  Device device;
  DType dtype = DType::kF32;  ///< of the first input
  int64_t batch_size = 0;     ///< sequences
  int64_t num_rows = 0;       ///< of all sequences together
  int64_t max_seqlen = 0;     ///< longest sequence; num_rows where lengths lie on a device
  bool is_packed = false;
  int64_t num_out_heads = 0;  ///< max(num_query_heads, num_state_heads)
  int64_t num_query_heads = 0;
  int64_t num_key_heads = 0;
  int64_t num_state_heads = 0;  ///< of v, gates and states
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;
  int64_t num_slots = 0;  ///< of gsa
  int64_t num_lines = 0;  ///< of the states of a step
  int64_t num_past = 0;   ///< of short_conv: rows before its own that a row reads
  double scale = 1;
  LinearNormalizer normalizer = LinearNormalizer::kNone;  ///< resolved: kNone when not asked for

  /// The head of q that an output head reads, and of k that a state head does.
  int64_t query_head_of(int64_t head_out) const {
    return head_out / (num_out_heads / num_query_heads);
  }
  int64_t key_head_of(int64_t state_head) const {
    return state_head / (num_state_heads / num_key_heads);
  }
  int64_t heads_a_state() const { return num_out_heads / num_state_heads; }
  /// States that share a key head.
  int64_t states_a_key() const { return num_key_heads == 0 ? 0 : num_state_heads / num_key_heads; }
};

/// Validates, then makes the problem. Throws Error. With `has_data` false tensors need no memory
/// (explain).
LinearProblem make_linear_problem(const LinearOp& op, LinearPass pass, const OpSpec& spec,
                                  const LinearArgs& args, bool has_data);

/// For a call like the one that `problem` was made of, but for the data of its tensors. False where
/// host lengths make another problem of it. Throws Error where host data is wrong.
bool has_lengths_of(const LinearProblem& problem, std::string_view op, const LinearArgs& args);

}  // namespace flashtile
