// SPDX-License-Identifier: Apache-2.0
//
// The text form of a problem, the same in test ids, the CLI, benchmarks and error reports:
//
//   attention_fwd:b2:hq8:hkv2:sq129:sk257:d128:causal:softcap=30:bias[1,hq,1,sk]:bf16@avx512
//
// op, then items separated by colons, then optionally @ and an implementation (its full name or the
// part behind the op's name):
//   CODE NUMBER        a size, by the code of its DimSpec
//   NAME=NUMBER        a size, by its name (page_size=16)
//   DTYPE              dtype of the tensors that have no fixed one; default f32
//   NAME               a bool option that is on, or an optional tensor with its full shape
//   NAME=VALUE         an option; a value with : @ or quotes in it stands in single quotes, with
//                      single quotes inside it doubled
//   NAME[A,B,...]      a tensor with that shape; entries are numbers, or codes or names of sizes,
//                      which +1 may follow
//   NAME={1,2,3}       an integer tensor with those values (cu_seqlens_q={0,3,10}); a shape may
//                      stand before the = sign (block_table[2,2]={0,1,2,3})
//   NAME=OTHER         an input that is the first columns of another, in the same memory (v=k)
//   NAME=none          leaves out a gradient that would be there because its input is
//   NAME.dtype         may follow a tensor's name to give it a dtype: out.f32, aux.table.i32[16]
//
// docs/problems.md says the same at length.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/op_spec.hpp"

namespace flashtile {

/// A tensor item of a problem text.
struct TensorItem {
  std::string name;
  DType dtype = DType::kNone;     ///< kNone: the row's default
  bool has_dims = false;          ///< false: the row's own shape, or the number of values
  std::vector<std::string> dims;  ///< as written
  bool has_values = false;
  std::vector<int64_t> values;  ///< for {...}
  bool is_left_out = false;     ///< NAME=none
  std::string whole;            ///< OTHER in NAME=OTHER

  bool operator==(const TensorItem&) const = default;
};

/// A problem text, taken apart. A value without tensors.
struct ProblemText {
  const OpSpec* spec = nullptr;
  Sizes sizes;  ///< those that are written out
  DType dtype = DType::kF32;
  /// Optional ones that are present, and whatever is said about others.
  std::vector<TensorItem> tensors;
  std::vector<std::pair<std::string, OptionValue>> options;
  std::string implementation;  ///< full name, or empty

  bool operator==(const ProblemText&) const = default;
  /// The item of that tensor; null when the text says nothing about it.
  const TensorItem* find_tensor(std::string_view name) const;
};

/// Throws Error with the 1-based column of what cannot be read.
ProblemText parse_problem(std::string_view text);
std::string format_problem(const ProblemText& problem);

/// All sizes of the op: those in the text, those that its shapes and values fix (with the help of
/// OpSpec::derive_sizes), and defaults for the rest.
Sizes resolve_sizes(const ProblemText& problem);

/// A size, or the default that resolve_sizes would give it.
int64_t size_or_default(const OpSpec& spec, const Sizes& sizes, std::string_view name);

/// Tensors of the right shapes, dtypes and strides without memory behind them (address null), set
/// in `call` together with the options. Required tensors are included, and gradients of the
/// floating inputs that are present where the op has them. The caller allocates, fills (see
/// `TensorSpec::fill`) and writes the values that the text gives. Throws Error.
OpCall make_call(const ProblemText& problem);

/// Writes the values of NAME={...} into the tensor's memory.
void write_values(const TensorItem& item, const TensorView& tensor);

/// The problem text of a call: what error reports print. Values of integer tensors are written out
/// only when they are short and on the CPU.
std::string problem_text(const OpCall& call);

}  // namespace flashtile
