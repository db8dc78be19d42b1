// SPDX-License-Identifier: Apache-2.0
#include "attend_call.hpp"

#include <algorithm>

#include "core/shape_spec.hpp"
#include "files/npy.hpp"
#include "files/safetensors.hpp"
#include "files/storage.hpp"
#include "flashtile/error.hpp"

namespace flashtile::cli {
namespace {

bool is_input(const OpSpec& spec, std::string_view name) {
  const TensorSpec* row = spec.find_tensor(name);
  return row != nullptr && row->is_input();
}

/// What the call of an op takes from files: of a backward op that follows its forward op, not what
/// the forward op gives it.
bool is_from_files(const OpSpec& spec, std::string_view name, bool follows_forward) {
  return is_input(spec, name) && !(follows_forward && is_forward_result(spec, name));
}

[[noreturn]] void fail(const OpSpec& spec, const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, std::string(spec.name) + ": " + text);
}

/// FILE, or FILE:NAME for one tensor of a .safetensors file.
TensorView read_one(const std::string& source, const std::string& name, TensorPool& pool) {
  const std::string path = path_of(source);
  std::string wanted = source.substr(std::min(path.size() + 1, source.size()));
  const TensorFile file = read_tensor_file(path);
  for (const auto& owner : file.storage) pool.keep(owner);
  if (wanted.empty() && file.tensors.size() == 1) return file.tensors.begin()->second;
  if (wanted.empty()) wanted = name;
  const auto found = file.tensors.find(wanted);
  if (found == file.tensors.end()) {
    throw file_error(path,
                     "has no tensor " + in_quotes(wanted) + "; say which, as in " + path + ":NAME");
  }
  return found->second;
}

/// The dtype of a result: what was asked for, or the first that its row allows.
DType result_dtype(const OpCall& call, const TensorSpec& row, const std::string& name,
                   const AttendRequest& request) {
  const auto asked = request.result_dtypes.find(name);
  if (asked != request.result_dtypes.end()) return asked->second;
  const std::string_view word = row.dtypes.substr(0, row.dtypes.find(' '));
  if (!word.starts_with('=')) return dtype_from_name(word);
  std::string other(word.substr(1));
  if (other.ends_with(".*")) other = family_name(other, family_suffix(row.name, name));
  return call.tensor(other).dtype;
}

/// Allocates a result; its shape follows from the table and the tensors that are given.
void add_result(OwnedCall& owned, const TensorSpec& row, const std::string& name,
                const AttendRequest& request) {
  OpCall& call = owned.call;
  std::vector<int64_t> shape;
  if (!row.gradient_of.empty()) {
    const std::string_view suffix = family_suffix(row.name, name);
    shape = shape_of(call.tensor(row.is_family() ? family_name(row.gradient_of, suffix)
                                                 : std::string(row.gradient_of)));
  } else {
    const std::vector<GivenTensor> given = given_tensors(call.spec(), call.args());
    Sizes sizes;
    const std::string fault = bind_sizes(given, sizes);
    if (!fault.empty()) fail(call.spec(), fault);
    const auto forms = shape_forms(
        row.shape, [&](std::string_view other) { return find_given(given, other) != nullptr; });
    if (forms.empty()) fail(call.spec(), "the shape of " + name + " does not follow from inputs");
    for (const ShapeEntry& entry : forms.front().dims()) {
      const auto size = sizes.find(entry.name);
      if (!entry.name.empty() && size == sizes.end()) {
        fail(call.spec(), "the shape of " + name + " does not follow from the inputs: " +
                              std::string(entry.name) + " is not known");
      }
      shape.push_back((entry.name.empty() ? entry.number : size->second) + entry.is_plus_one);
    }
  }
  const TensorView tensor = owned.pool.make(result_dtype(call, row, name, request), shape);
  poison(tensor);
  call.set_tensor(name, tensor);
}

/// Names of the gradients that a row stands for: of inputs that are given and floating.
std::vector<std::string> gradient_names(const OpCall& call, const TensorSpec& row) {
  std::vector<std::string> names;
  for (const std::string& input : call.tensor_names()) {
    const TensorSpec& input_row = *call.spec().find_tensor(input);
    if (input_row.name != row.gradient_of || !is_floating(call.tensor(input).dtype)) continue;
    names.push_back(row.is_family() ? family_name(row.name, family_suffix(input_row.name, input))
                                    : std::string(row.name));
  }
  return names;
}

void set_inputs(OpCall& call, const AttendInputs& inputs, const AttendRequest& request,
                bool follows_forward) {
  for (const auto& [name, tensor] : inputs.tensors) {
    if (is_from_files(call.spec(), name, follows_forward)) call.set_tensor(name, tensor);
  }
  for (const auto& [name, text] : request.options) call.set_option_text(name, text);
  for (const TensorSpec& row : call.spec().tensors) {
    const bool is_missing = row.required && !call.tensor(row.name) &&
                            is_from_files(call.spec(), row.name, follows_forward);
    if (is_missing) fail(call.spec(), "there is no tensor '" + std::string(row.name) + "'");
  }
}

}  // namespace

std::string path_of(const std::string& source) {
  const size_t colon = source.rfind(':');
  if (colon == std::string::npos) return source;
  const std::string path = source.substr(0, colon);
  return path.ends_with(".safetensors") ? path : source;
}

AttendInputs read_inputs(const AttendRequest& request, const OpSpec& op, bool is_backward) {
  AttendInputs inputs;
  for (const std::string& path : request.input_files) {
    if (!path.ends_with(".safetensors")) {
      throw file_error(
          path, "only a .safetensors file names its tensors; give a flag, as in --q " + path);
    }
    const TensorFile file = read_safetensors(path);
    for (const auto& owner : file.storage) inputs.pool.keep(owner);
    for (const auto& [name, tensor] : file.tensors) {
      if (!inputs.tensors.emplace(name, tensor).second) {
        throw file_error(path, "tensor " + in_quotes(name) + " is in another input file as well");
      }
    }
  }
  for (const auto& [name, source] : request.tensor_files) {
    inputs.tensors[name] = read_one(source, name, inputs.pool);
  }
  const OpSpec* backward = is_backward ? backward_of(op) : nullptr;
  for (const auto& [name, tensor] : inputs.tensors) {
    const bool is_used =
        is_input(op, name) || (backward != nullptr && is_from_files(*backward, name, true));
    if (!is_used) inputs.unused.push_back(name);
  }
  return inputs;
}

AttendInputs random_inputs(AttendRequest& request, const OpSpec& op, bool is_backward) {
  ProblemText problem = parse_problem(request.problem);
  if (problem.spec != &op) {
    fail(op, "the problem text is one of " + std::string(problem.spec->name) + "; give --op");
  }
  const bool follows_forward = is_backward && backward_of(op) != nullptr;
  if (follows_forward) problem.spec = backward_of(op);
  const OwnedCall random = random_call(problem, request.seed);
  if (!follows_forward) run_forward_of(random.call, "", {});
  AttendInputs inputs;
  inputs.pool = random.pool;
  for (const std::string& name : random.call.tensor_names()) {
    if (is_from_files(random.call.spec(), name, follows_forward)) {
      inputs.tensors[name] = random.call.tensor(name);
    }
  }
  for (const std::string& name : random.call.option_names()) {
    request.options.emplace(name, option_text(random.call.option(name)));
  }
  return inputs;
}

OwnedCall make_attend_call(const OpSpec& op, const AttendInputs& inputs,
                           const AttendRequest& request) {
  OwnedCall owned{OpCall(op)};
  set_inputs(owned.call, inputs, request, false);
  const OpSpec* backward = backward_of(op);
  for (const TensorSpec& row : op.tensors) {
    if (row.direction != Direction::kOut || row.is_family()) continue;
    const std::string name(row.name);
    const bool is_wanted = row.required || request.result_files.contains(name) ||
                           (backward != nullptr && is_forward_result(*backward, name)) ||
                           (!row.gradient_of.empty() && !gradient_names(owned.call, row).empty());
    if (is_wanted) add_result(owned, row, name, request);
  }
  // Files are not written into.
  for (const std::string& name : owned.call.tensor_names()) {
    if (!op.find_tensor(name)->is_input() || !owned.call.writes(name)) continue;
    const TensorView tensor = owned.call.tensor(name);
    owned.call.set_tensor(name, owned.pool.convert(tensor, tensor.dtype));
  }
  return owned;
}

OwnedCall make_backward_call(const OwnedCall& forward, const AttendInputs& inputs,
                             const AttendRequest& request) {
  const OpSpec* spec = backward_of(forward.call.spec());
  if (spec == nullptr) fail(forward.call.spec(), "this op has no backward op");
  OwnedCall owned{OpCall(*spec)};
  set_inputs(owned.call, inputs, request, true);
  for (const TensorSpec& row : spec->tensors) {
    if (is_forward_result(*spec, row.name)) {
      owned.call.set_tensor(row.name, forward.call.tensor(row.name));
    }
  }
  for (const TensorSpec& row : spec->tensors) {
    if (row.direction != Direction::kOut) continue;
    for (const std::string& name : gradient_names(owned.call, row)) {
      add_result(owned, row, name, request);
    }
  }
  return owned;
}

void write_results(const std::vector<const OpCall*>& calls, const AttendRequest& request,
                   const std::string& all_file) {
  TensorMap results;
  Metadata metadata;
  for (const OpCall* call : calls) {
    for (const std::string& name : call->tensor_names()) {
      if (!call->writes(name)) continue;
      results[name] = call->tensor(name);
    }
    metadata[std::string(call->spec().name)] = problem_text(*call);
  }
  for (const auto& [name, path] : request.result_files) {
    const auto result = results.find(name);
    if (result == results.end()) continue;
    if (path.ends_with(".npy")) {
      write_npy(path, result->second);
    } else if (path.ends_with(".safetensors")) {
      write_safetensors(path, {{name, result->second}}, metadata);
    } else {
      throw file_error(path, "is neither a .npy nor a .safetensors file");
    }
  }
  if (!all_file.empty()) write_safetensors(all_file, results, metadata);
}

}  // namespace flashtile::cli
