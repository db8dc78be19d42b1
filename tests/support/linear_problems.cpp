// SPDX-License-Identifier: Apache-2.0
#include "support/linear_problems.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "op_runs.hpp"
#include "ops/linear/table.hpp"
#include "support/tensor.hpp"
#include "support/toy_linear_op.hpp"

namespace flashtile::test {
namespace {

bool is_state_of_norm(std::string_view name) { return name.ends_with("_norm"); }

/// What a table says about an op, as a case.
LinearCase case_of(const OpSpec& forward, bool with_switches) {
  LinearCase one;
  one.op = forward.name.substr(0, forward.name.size() - 4);
  bool has_normalize = false;
  std::string options;
  for (const OptionSpec& row : forward.options) {
    has_normalize = has_normalize || row.name == "normalize";
    if (row.name == "layers") options += ":layers=3:layer=1";
    if (row.name == "dt_max" && with_switches) options += ":dt_min=0.3:dt_max=1.2";
    if (row.name == "lower_bound" && with_switches) options += ":lower_bound=-5:divisor=2";
    if (row.type == OptionType::kBool && with_switches) options += ":" + std::string(row.name);
  }
  one.is_normalized = has_normalize && with_switches;
  for (const auto& [dim, text] :
       {std::pair{"num_heads", ":hq4"}, std::pair{"num_heads_kv", ":hkv2"},
        std::pair{"num_groups", ":num_groups=2"}, std::pair{"num_channels", ":c4"},
        std::pair{"head_dim", ":d3"}, std::pair{"head_dim_v", ":dv2"},
        std::pair{"num_slots", ":m5"}, std::pair{"num_heads_v", ":hv8"},
        std::pair{"num_past", ":past2"}}) {
    if (forward.find_dim(dim) != nullptr) one.rest += text;
  }
  for (const TensorSpec& row : forward.tensors) {
    const bool is_absent = row.direction != Direction::kIn || row.required ||
                           row.name == "cu_seqlens" ||
                           (is_state_of_norm(row.name) && has_normalize && !with_switches);
    if (!is_absent) one.rest += ":" + std::string(row.name);
  }
  one.rest += options;
  return one;
}

bool has_switches(const OpSpec& forward) {
  for (const OptionSpec& row : forward.options) {
    if (row.type == OptionType::kBool || row.name == "lower_bound") return true;
  }
  return false;
}

/// `prefix` and the rest of each state row of the case, for "final_" or "dfinal_".
std::string states_of(const OpSpec& spec, const LinearCase& one, const std::string& prefix) {
  std::string text;
  for (const TensorSpec& row : spec.tensors) {
    if (!row.name.starts_with(prefix)) continue;
    const std::string name(row.name);
    // States that are there only under an option have an initial one exactly then.
    const std::string initial = "initial_" + name.substr(prefix.size());
    if (one.rest.find(":" + initial) != std::string::npos) text += ":" + name;
  }
  return text;
}

void make_positive(const TensorView& tensor) {
  std::vector<double> values = cli::to_numbers(tensor);
  for (double& x : values) x = std::abs(x);
  cli::from_numbers(values, tensor);
}

/// A part of each timed tensor, as `view_of` gives it; outputs are new.
template <class ViewOf>
cli::OwnedCall with_views(const OpCall& call, const ViewOf& view_of) {
  OpCall part(call);
  for (const std::string& name : call.tensor_names()) {
    part.set_tensor(name, view_of(name, call.tensor(name)));
  }
  return cli::with_own_outputs(part);
}

}  // namespace

std::string LinearCase::forward(const std::string& lengths) const {
  const OpSpec& spec = *find_op(op + "_fwd");
  return op + "_fwd:" + lengths + rest + states_of(spec, *this, "final_");
}

std::string LinearCase::backward(const std::string& lengths) const {
  const OpSpec& spec = *find_op(op + "_bwd");
  return op + "_bwd:" + lengths + rest + states_of(spec, *this, "dfinal_");
}

void for_each_linear_case(const std::function<void(const LinearCase&)>& check) {
  std::vector<const OpSpec*> specs = linear_specs();
  const std::vector<const OpSpec*>& toy = toy::leaky_sum_specs();
  specs.insert(specs.end(), toy.begin(), toy.end());
  for (const OpSpec* spec : specs) {
    if (!spec->name.ends_with("_fwd")) continue;
    for (const bool with_switches : {false, true}) {
      if (with_switches && !has_switches(*spec)) continue;
      const LinearCase one = case_of(*spec, with_switches);
      SCOPED_TRACE(one.op + one.rest);
      check(one);
    }
  }
}

std::string LinearCase::step() const {
  std::string states = rest;  // "initial_norm" is "norm" there
  for (size_t at = states.find("initial_"); at != std::string::npos; at = states.find("initial_")) {
    states.erase(at, 8);
  }
  const OpSpec& spec = *find_op(op + "_step");
  const bool has_slots = spec.find_tensor("state_slots") != nullptr;
  return op + "_step:b2" + (has_slots ? ":lines5:state_slots={3,0}" : "") + states;
}

cli::OwnedCall linear_call(const std::string& text, uint64_t seed) {
  cli::OwnedCall owned = cli::random_call(parse_problem(text), seed);
  const std::string_view name = owned.call.spec().name;
  if (name.starts_with("linear_attention") && owned.call.option("normalize") == OptionValue(true)) {
    for (const char* each : {"q", "k", "initial_norm", "norm"}) {
      const bool is_there = owned.call.spec().find_tensor(each) != nullptr;
      if (is_there) make_positive(owned.call.tensor(each));
    }
  }
  return owned;
}

bool is_timed(const OpCall& call, const std::string& name) {
  return call.spec().find_tensor(name)->shape.find("total") != std::string_view::npos;
}

TensorView time_slice(const OpCall& call, const TensorView& tensor, int64_t begin, int64_t end) {
  return tensor.sliced(call.tensor("cu_seqlens") ? 0 : 1, begin, end);
}

cli::OwnedCall sequence_of(const OpCall& packed, int64_t b) {
  const TensorView list = packed.tensor("cu_seqlens");
  const auto begin = static_cast<int64_t>(get(list, {b}));
  const auto end = static_cast<int64_t>(get(list, {b + 1}));
  cli::OwnedCall owned = with_views(packed, [&](const std::string& name, const TensorView& tensor) {
    if (name == "cu_seqlens") return TensorView{};
    const bool is_state =
        name.find("initial_") != std::string::npos || name.find("final_") != std::string::npos;
    if (is_state) return tensor.sliced(0, b, b + 1);
    if (!is_timed(packed, name)) return tensor;
    const TensorView rows = tensor.sliced(0, begin, end);
    TensorView one = rows;
    one.ndim = rows.ndim + 1;
    one.shape[0] = 1;
    for (size_t d = 0; d < static_cast<size_t>(rows.ndim); ++d) {
      one.shape[d + 1] = rows.shape[d];
      one.strides[d + 1] = rows.strides[d];
    }
    return one;
  });
  return owned;
}

cli::OwnedCall part_of(const OpCall& call, int64_t begin, int64_t end) {
  return with_views(call, [&](const std::string& name, const TensorView& tensor) {
    return is_timed(call, name) ? tensor.sliced(1, begin, end) : tensor;
  });
}

std::vector<std::string> gate_names(const OpCall& call) {
  std::vector<std::string> names;
  for (const std::string& name : call.tensor_names()) {
    const TensorSpec& row = *call.spec().find_tensor(name);
    const bool is_gate = row.fill == Fill::kLogDecay || name == "f";
    if (is_gate && row.direction == Direction::kIn && is_timed(call, name)) names.push_back(name);
  }
  return names;
}

}  // namespace flashtile::test
