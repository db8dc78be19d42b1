// SPDX-License-Identifier: Apache-2.0
#include "op_runs.hpp"

#include <algorithm>
#include <optional>

#include "core/registry.hpp"
#include "device_tensors.hpp"
#include "flashtile/error.hpp"

namespace flashtile::cli {
namespace {

constexpr std::string_view kForward = "_fwd", kBackward = "_bwd";

const OpSpec* partner_of(const OpSpec& spec, std::string_view from, std::string_view to) {
  if (!spec.name.ends_with(from)) return nullptr;
  const std::string_view stem = spec.name.substr(0, spec.name.size() - from.size());
  return find_op(std::string(stem) + std::string(to));
}

/// True when a row of the table takes a dtype, following "=NAME".
bool row_allows(const OpSpec& spec, const TensorSpec& row, std::string_view dtype, int depth = 0) {
  std::string_view rest = row.dtypes;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(' '), rest.size());
    const std::string_view word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (word == dtype) return true;
    if (!word.starts_with('=') || depth > 4) continue;
    const TensorSpec* other = spec.find_tensor(word.substr(1));
    if (other != nullptr && row_allows(spec, *other, dtype, depth + 1)) return true;
  }
  return false;
}

}  // namespace

std::string_view implementation_suffix(const OpSpec& spec, std::string_view implementation) {
  if (!implementation.starts_with(spec.name)) return implementation;
  return implementation.substr(std::min(spec.name.size() + 1, implementation.size()));
}

bool has_implementation(const OpSpec& spec, std::string_view name, DeviceType device) {
  const std::vector<std::string> names = spec.implementations(device);
  return std::any_of(names.begin(), names.end(), [&](const std::string& each) {
    return names_implementation(name, spec.name, each);
  });
}

std::string asked_implementation(const ProblemText& problem, const std::string& flag,
                                 DeviceType device) {
  const OpSpec& spec = *problem.spec;
  const std::string& own = problem.implementation;
  const auto fail = [&](const std::string& text) {
    throw Error(ErrorCode::kInvalidArgument, std::string(spec.name) + ": " + text);
  };
  if (!own.empty() && !flag.empty() &&
      implementation_suffix(spec, own) != implementation_suffix(spec, flag)) {
    fail("the problem text asks for implementation '" + own + "', --impl for '" + flag + "'");
  }
  const std::string& asked = own.empty() ? flag : own;
  if (asked.empty()) return asked;
  for (const OpSpec* each : {&spec, forward_of(spec), backward_of(spec)}) {
    if (each != nullptr && has_implementation(*each, asked, device)) return asked;
  }
  std::string names;
  for (const std::string& name : spec.implementations(device)) names += " " + name;
  fail("there is no implementation '" + asked + "', but" + names);
  return {};
}

std::string reference_of(const OpSpec& spec) {
  const std::vector<std::string> names = spec.implementations();
  return names.empty() ? std::string() : names.back();
}

bool is_reference(const OpSpec& spec, std::string_view implementation) {
  return implementation == reference_of(spec);
}

const OpSpec* forward_of(const OpSpec& spec) { return partner_of(spec, kBackward, kForward); }
const OpSpec* backward_of(const OpSpec& spec) { return partner_of(spec, kForward, kBackward); }

bool is_forward_result(const OpSpec& backward, std::string_view name) {
  const OpSpec* forward = forward_of(backward);
  if (forward == nullptr) return false;
  const TensorSpec* input = backward.find_tensor(name);
  const TensorSpec* output = forward->find_tensor(name);
  return input != nullptr && output != nullptr && input->is_input() &&
         output->direction == Direction::kOut;
}

bool needs_forward(const OpSpec& backward) {
  return std::any_of(backward.tensors.begin(), backward.tensors.end(),
                     [&](const TensorSpec& row) { return is_forward_result(backward, row.name); });
}

OpCall forward_call(const OpCall& backward) {
  OpCall call(*forward_of(backward.spec()));
  for (const std::string& name : backward.tensor_names()) {
    const TensorSpec& row = *backward.spec().find_tensor(name);
    const bool is_shared = row.is_input() && call.spec().find_tensor(name) != nullptr;
    if (is_shared) call.set_tensor(name, backward.tensor(name));
  }
  for (const std::string& name : backward.option_names()) {
    call.set_option(name, backward.option(name));
  }
  return call;
}

void run_forward_of(const OpCall& backward, std::string_view suffix, const Context& context) {
  const OpSpec* spec = forward_of(backward.spec());
  if (spec == nullptr || !needs_forward(backward.spec())) return;
  const OpCall call = forward_call(backward);
  Context forced = context;
  for (const std::string& name : spec->implementations(context.device.type)) {
    if (implementation_suffix(*spec, name) != suffix) continue;
    forced.implementation = name;
    if (run_forced(call, name, context).text.empty()) return;
  }
  forced.implementation = reference_of(*spec);
  forced.device = {};  // the reference works on the host
  call.run(forced);
}

OwnedCall promoted(const OpCall& call) {
  OwnedCall result(call);
  for (const std::string& name : call.tensor_names()) {
    const TensorView tensor = call.tensor(name);
    const TensorSpec& row = *call.spec().find_tensor(name);
    const bool is_double =
        is_floating(tensor.dtype) && row_allows(call.spec(), row, dtype_name(DType::kF64));
    const DType dtype = is_double ? DType::kF64 : tensor.dtype;
    const bool is_result = row.direction == Direction::kOut || is_forward_result(call.spec(), name);
    if (is_result) {
      const TensorView own = result.pool.make(dtype, shape_of(tensor));
      poison(own);
      result.call.set_tensor(name, own);
    } else if (dtype != tensor.dtype || call.writes(name)) {
      result.call.set_tensor(name, result.pool.convert(tensor, dtype));
    }
  }
  return result;
}

OwnedCall with_own_outputs(const OpCall& call) {
  OwnedCall result(call);
  for (const std::string& name : call.tensor_names()) {
    const TensorSpec& row = *call.spec().find_tensor(name);
    const TensorView tensor = call.tensor(name);
    if (row.is_input() && call.writes(name)) {
      result.call.set_tensor(name, result.pool.convert(tensor, tensor.dtype));
      continue;
    }
    if (row.is_input() && !is_forward_result(call.spec(), name)) continue;
    const TensorView own = result.pool.make(tensor.dtype, shape_of(tensor));
    poison(own);
    result.call.set_tensor(name, own);
  }
  return result;
}

RunResult run_forced(const OpCall& call, const std::string& implementation,
                     const Context& context) {
  Context forced = context;
  forced.implementation = implementation;
  RunResult result;
  std::optional<DeviceCall> device;
  try {
    if (context.device.type == DeviceType::kCuda) {
      device.emplace(call, forced);
      device->run();
      device->download();
    } else {
      call.run(forced);
    }
  } catch (const Error& error) {
    result.is_refused = error.code() == ErrorCode::kUnsupported;
    result.text = error.what();
    const bool is_explained = device || context.device.type == DeviceType::kCpu;
    if (result.is_refused && is_explained) {
      const OpCall& asked = device ? device->call() : call;
      for (const Candidate& candidate : asked.explain(forced).candidates) {
        if (candidate.implementation == implementation) result.text = candidate.refusal;
      }
    }
  }
  return result;
}

}  // namespace flashtile::cli
