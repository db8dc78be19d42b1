// SPDX-License-Identifier: Apache-2.0
//
// The text form of a problem, the same in test ids, the CLI, benchmarks and error reports:
//
//   attention_fwd:b2:hq8:hkv2:sq129:sk257:d128:causal:softcap=30:bias[1,hq,1,sk]:bf16@avx512
//
// op, then items separated by colons, then optionally @ and an implementation (its full name or the
// part behind the op's name):
//   CODE NUMBER        a size, by the code of its DimSpec
//   DTYPE              dtype of the tensors that have no fixed one; default f32
//   NAME               a bool option that is on, or an optional tensor with its full shape
//   NAME=VALUE         an option; a value with : @ or quotes in it stands in single quotes
//   NAME[A,B,...]      an optional tensor with that shape; entries are numbers, size codes or 1
//   NAME={1,2,3}       an optional i32 tensor with those values (cu_seqlens_q={0,3,10})
//   NAME.dtype         may follow a tensor's name to give it a dtype: out.f32, aux.table.i32[16]
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/op_spec.hpp"

namespace flashtile {

/// A tensor item of a problem text.
struct TensorItem {
  std::string name;
  DType dtype = DType::kNone;          ///< kNone: the row's default
  std::vector<std::string> dims;       ///< as written; empty: the row's own shape
  std::vector<int64_t> values;         ///< for {...}
  bool has_values = false;
};

/// A problem text, taken apart. A value without tensors.
struct ProblemText {
  const OpSpec* spec = nullptr;
  std::map<std::string, int64_t, std::less<>> sizes;  ///< by DimSpec::name
  DType dtype = DType::kF32;
  std::vector<TensorItem> tensors;  ///< optional ones that are present
  std::vector<std::pair<std::string, OptionValue>> options;
  std::string implementation;  ///< full name, or empty
};

/// Throws Error with the 1-based column of what cannot be read.
ProblemText parse_problem(std::string_view text);
std::string format_problem(const ProblemText& problem);

/// Tensors of the right shapes, dtypes and strides without memory behind them (address null), set
/// in `call` together with the options. Outputs marked required are included, gradients of present
/// inputs too where the op has them. The caller allocates and fills (see `TensorSpec::fill`);
/// value lists are in ProblemText::tensors.
OpCall make_call(const ProblemText& problem);

/// The problem text of a call: what error reports print. Values of integer tensors are written out
/// only when they are short and on the CPU.
std::string problem_text(const OpCall& call);

}  // namespace flashtile
