// SPDX-License-Identifier: Apache-2.0
//
// From files and flags to a call of the operator table.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "files/tensor_file.hpp"
#include "op_runs.hpp"

namespace flashtile::cli {

/// What `attend` was asked for, by names of the table.
struct AttendRequest {
  std::vector<std::string> input_files;             ///< .safetensors: tensors by their names
  std::map<std::string, std::string> tensor_files;  ///< inputs from FILE or FILE:NAME
  std::map<std::string, std::string> options;       ///< as text
  std::map<std::string, std::string> result_files;  ///< results to write, each to its file
  std::map<std::string, DType> result_dtypes;
  std::string problem;  ///< random inputs of this problem text instead of files
  uint64_t seed = 1;
};

/// Tensors of files, and what became of them.
struct AttendInputs {
  TensorMap tensors;
  TensorPool pool;
  std::vector<std::string> unused;  ///< names that the op does not take
};

/// The file of "FILE" or "FILE:NAME".
std::string path_of(const std::string& source);

/// Reads all files of a request. Names that the op (or its backward op, with `is_backward`) does
/// not take as inputs are kept in `tensors` as well, and listed in `unused`.
AttendInputs read_inputs(const AttendRequest& request, const OpSpec& op, bool is_backward);

/// The same from the request's problem text: random tensors; its options are added to the request.
AttendInputs random_inputs(AttendRequest& request, const OpSpec& op, bool is_backward);

/// A call with inputs from `inputs`, the options, and results that are allocated: required ones,
/// those that a file is named for, those that the backward op reads, and gradients of all floating
/// inputs. Throws Error.
OwnedCall make_attend_call(const OpSpec& op, const AttendInputs& inputs,
                           const AttendRequest& request);

/// The backward call of a forward call that has run.
OwnedCall make_backward_call(const OwnedCall& forward, const AttendInputs& inputs,
                             const AttendRequest& request);

/// Writes results to their files, and all of them to `all_file` (.safetensors) if it is not empty.
void write_results(const std::vector<const OpCall*>& calls, const AttendRequest& request,
                   const std::string& all_file);

}  // namespace flashtile::cli
