// SPDX-License-Identifier: Apache-2.0
//
// What of a problem changes the structure of an attention kernel, as members of the generated
// `Config`. Everything else (scale, windows, lengths, strides, ...) is an argument.
#pragma once

#include <string>
#include <string_view>

#include "ops/attention/problem.hpp"

namespace flashtile::cuda {

/// "kBF16" and so on: the device's name of an element type; "kNone" for no tensor.
std::string_view element_name(DType dtype);

/// The widest copy that a tensor's addresses and strides allow, in bytes: 16, 8 or 4; 0 where
/// elements must be read one by one. The last dimension is the row.
int copy_bytes(const TensorLayout& layout);

/// "  static constexpr int kName = 3;\n".
std::string config_int(std::string_view name, int64_t value);
std::string config_bool(std::string_view name, bool value);
std::string config_element(std::string_view name, DType dtype);

/// What score and mask options need of every kernel that works out logits.
struct ScoreFlags {
  explicit ScoreFlags(const AttentionProblem& problem);

  bool has_softcap, has_alibi, has_user_score, has_block_list, has_user_mask;
  bool has_lower_bound;  ///< a mask by position may hide the first keys
  DType bias;
  bool has_options;  ///< something besides the scale changes scores

  /// Masks other than by position.
  bool has_block_map() const { return has_block_list || has_user_mask; }
  /// Members of Config: kElement, kBias, kHasSoftcap, ..., Expressions.
  std::string text(const AttentionProblem& problem) const;
};

/// Everything before `struct Config` that its members refer to.
std::string config_preamble(const AttentionProblem& problem);

/// The first condition that no CUDA kernel for attention meets; empty: none.
std::string refuse_attention(const AttentionProblem& problem);
/// The same of kernels for Hopper alone.
std::string refuse_hopper(const AttentionProblem& problem);

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace flashtile::cuda
