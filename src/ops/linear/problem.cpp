// SPDX-License-Identifier: Apache-2.0
#include "ops/linear/problem.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/fail.hpp"
#include "core/kept_list.hpp"
#include "core/validate.hpp"
#include "ops/linear/table.hpp"

namespace flashtile {
namespace {

constexpr int64_t kMaxHeadDim = 1024;

int64_t size_or(const Sizes& sizes, std::string_view name, int64_t fallback) {
  const auto found = sizes.find(name);
  return found == sizes.end() ? fallback : found->second;
}

/// A size that divides another one: heads that are shared by a group.
void check_group(std::string_view op, const Sizes& sizes, std::string_view many,
                 std::string_view few) {
  const auto found = sizes.find(few);
  if (found == sizes.end()) return;
  const int64_t num_many = size_or(sizes, many, 0);
  const bool divides = found->second == 0 ? num_many == 0 : num_many % found->second == 0;
  if (divides) return;
  fail(op, many, " is ", num_many, ", expected a multiple of ", few, " (", found->second, ")");
}

void check_sizes(std::string_view op, const Sizes& sizes) {
  check_group(op, sizes, "num_heads", "num_heads_kv");
  check_group(op, sizes, "num_heads_v", "num_heads");
  const bool is_scan = sizes.contains("num_channels");
  check_group(op, sizes, is_scan ? "num_channels" : "num_heads", "num_groups");
  for (const std::string_view name : {"head_dim", "head_dim_v", "num_slots"}) {
    const int64_t size = size_or(sizes, name, 1);
    if (size >= 1 && size <= kMaxHeadDim) continue;
    fail(op, name, " is ", size, ", expected 1 to ", kMaxHeadDim);
  }
}

/// Longest sequence of a cu_seqlens list on the host, which has to cover all rows.
int64_t check_cu_seqlens(std::string_view op, const TensorView& list, int64_t num_rows) {
  int64_t longest = 0;
  int64_t previous = 0;
  for (int64_t b = 0; b < list.shape[0]; ++b) {
    const int64_t entry = *reinterpret_cast<const int32_t*>(list.at({b}));
    if (b == 0 && entry != 0) fail(op, "cu_seqlens[0] is ", entry, ", expected 0");
    if (entry < previous) {
      fail(op, "cu_seqlens[", b, "] is ", entry, ", less than ", previous, " before it");
    }
    longest = std::max(longest, entry - previous);
    previous = entry;
  }
  if (previous != num_rows) {
    fail(op, "cu_seqlens ends at ", previous, ", expected the ", num_rows, " packed rows");
  }
  return longest;
}

/// Every sequence has a line of the states of its own.
void check_slots(std::string_view op, const TensorView& slots, int64_t num_lines) {
  KeptList<std::pair<int64_t, int64_t>> owners;  // lines, and whose they are
  for (int64_t b = 0; b < slots.shape[0]; ++b) {
    const int64_t line = *reinterpret_cast<const int32_t*>(slots.at({b}));
    if (line < 0 || line >= num_lines) {
      fail(op, "state_slots[", b, "] is ", line, ", the states have ", num_lines, " lines");
    }
    owners.emplace_back(line, b);
  }
  std::sort(owners.begin(), owners.end());
  for (size_t n = 1; n < owners.size(); ++n) {
    const auto& [line, b] = owners[n];
    const auto& [line_before, owner] = owners[n - 1];
    if (line != line_before) continue;
    fail(op, "state_slots[", b, "] is ", line, ", and so is state_slots[", owner, "]");
  }
}

void set_lengths(std::string_view op, const LinearArgs& args, const Sizes& sizes, bool has_data,
                 LinearProblem& problem) {
  problem.is_packed = bool(args.cu_seqlens);
  const bool is_step = problem.pass == LinearPass::kStep;
  problem.batch_size = size_or(sizes, "batch_size", 0);
  problem.max_seqlen = is_step ? 1 : size_or(sizes, "seqlen", 0);
  problem.num_rows = problem.batch_size * problem.max_seqlen;
  problem.num_lines = size_or(sizes, "num_lines", 0);
  if (is_step && args.state_slots && has_data && problem.device.type == DeviceType::kCpu) {
    check_slots(op, args.state_slots, problem.num_lines);
  }
  if (!problem.is_packed) return;
  problem.num_rows = size_or(sizes, "total", 0);
  problem.max_seqlen = problem.num_rows;
  if (has_data && problem.device.type == DeviceType::kCpu) {
    problem.max_seqlen = check_cu_seqlens(op, args.cu_seqlens, problem.num_rows);
  }
}

void set_heads(const Sizes& sizes, LinearProblem& problem) {
  const bool is_scan = sizes.contains("num_channels");
  problem.num_query_heads = size_or(sizes, is_scan ? "num_channels" : "num_heads", 0);
  problem.num_key_heads = problem.num_query_heads;
  problem.num_state_heads = problem.num_query_heads;
  if (sizes.contains("num_heads_kv")) {
    problem.num_key_heads = problem.num_state_heads = size_or(sizes, "num_heads_kv", 0);
  } else if (sizes.contains("num_heads_v")) {
    problem.num_state_heads = size_or(sizes, "num_heads_v", 0);
  } else if (sizes.contains("num_groups")) {
    problem.num_query_heads = problem.num_key_heads = size_or(sizes, "num_groups", 0);
  }
  problem.num_out_heads = std::max(problem.num_query_heads, problem.num_state_heads);
  problem.head_dim = size_or(sizes, "head_dim", 1);
  problem.head_dim_v = size_or(sizes, "head_dim_v", 1);
  problem.num_slots = size_or(sizes, "num_slots", 0);
  problem.num_past = size_or(sizes, "num_past", 0);
}

void check_norm(std::string_view op, const LinearArgs& args, const LinearProblem& problem) {
  const bool is_normalized = problem.normalizer != LinearNormalizer::kNone;
  const std::array<std::pair<const char*, const TensorView*>, 5> all = {
      std::pair{"initial_norm", &args.initial_states.norm},
      std::pair{"final_norm", &args.final_states.norm},
      std::pair{"dinitial_norm", &args.dinitial_states.norm},
      std::pair{"dfinal_norm", &args.dfinal_states.norm},
      std::pair{"norm", &args.states.norm},
  };
  for (const auto& [name, tensor] : all) {
    if (*tensor && !is_normalized) fail(op, name, " is given without normalize");
  }
  if (problem.pass == LinearPass::kStep && is_normalized && !args.states.norm) {
    fail(op, "norm is missing");
  }
}

}  // namespace

LinearProblem make_linear_problem(const LinearOp& op, LinearPass pass, const OpSpec& spec,
                                  const LinearArgs& args, bool has_data) {
  const Sizes sizes = has_data ? validate_call(spec, &args) : validate_shapes(spec, &args);
  const std::string_view name = spec.name;
  check_sizes(name, sizes);
  const TensorView& leading = *op.inputs.front().access(const_cast<LinearArgs*>(&args), {}, false);
  LinearProblem problem;
  problem.op = &op;
  problem.pass = pass;
  problem.device = leading.device;
  problem.dtype = leading.dtype;
  set_heads(sizes, problem);
  set_lengths(name, args, sizes, has_data, problem);
  if (args.normalize || op.is_always_normalized) problem.normalizer = op.normalizer;
  check_norm(name, args, problem);
  const double unit =
      op.has_unit_scale ? 1.0 : 1 / std::sqrt(static_cast<double>(problem.head_dim));
  problem.scale = args.scale.value_or(unit);
  if (args.dt_min > args.dt_max) {
    fail(name, "dt_min is ", args.dt_min, ", more than dt_max, ", args.dt_max);
  }
  const std::string& map = args.feature_map;
  if (map != "elu" && map != "relu" && map != "relu2" && map != "softmax") {
    fail(name, "feature_map is '", map, "', expected elu, relu, relu2 or softmax");
  }
  if (args.layer >= args.layers) {
    fail(name, "layer is ", args.layer, ", expected less than layers, ", args.layers);
  }
  return problem;
}

bool has_lengths_of(const LinearProblem& problem, std::string_view op, const LinearArgs& args) {
  if (problem.device.type != DeviceType::kCpu) return true;
  if (problem.pass == LinearPass::kStep && args.state_slots) {
    check_slots(op, args.state_slots, problem.num_lines);
  }
  return !problem.is_packed ||
         check_cu_seqlens(op, args.cu_seqlens, problem.num_rows) == problem.max_seqlen;
}

}  // namespace flashtile
