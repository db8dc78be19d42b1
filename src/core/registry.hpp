// SPDX-License-Identifier: Apache-2.0
//
// Selection: every implementation of an op has a name and says what it refuses. The first one that
// takes the problem runs; a forced one runs or its refusal is the error.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/env.hpp"
#include "core/executor.hpp"
#include "flashtile/context.hpp"
#include "flashtile/error.hpp"
#include "flashtile/explain.hpp"

namespace flashtile {

/// One implementation of an op with problem type Problem and plan type Plan. `Inputs` is what a
/// launch reads and writes besides the problem.
template <class Problem, class Plan, class Inputs>
struct Implementation {
  std::string_view name;
  /// The first condition that the problem fails, for a person; empty when it takes the problem.
  std::string (*refuse)(const Problem& problem) = nullptr;
  /// Tiles, splits, workspace; a function of the problem alone (and of this machine's caches).
  Plan (*plan)(const Problem& problem) = nullptr;
  void (*launch)(const Problem& problem, const Plan& plan, const Inputs& inputs,
                 const Context& context) = nullptr;
  DeviceType device = DeviceType::kCpu;  ///< where its tensors lie
};

/// A call as far as it comes before its launch.
template <class Problem, class Plan, class Inputs>
struct PlannedCall {
  Problem problem;
  const Implementation<Problem, Plan, Inputs>* implementation = nullptr;
  Plan plan;

  void launch(const Inputs& inputs, const Context& context) const {
    implementation->launch(problem, plan, inputs, context);
  }
};

/// "avx512" and "attention_fwd_avx512" both name attention_fwd_avx512.
inline bool names_implementation(std::string_view asked, std::string_view op,
                                 std::string_view name) {
  return asked == name || (name.size() == op.size() + 1 + asked.size() && name.starts_with(op) &&
                           name.ends_with(asked));
}

/// The implementation asked for by the context or by FLASHTILE_IMPL; empty when any will do. The
/// environment only counts where it names an implementation of this op; it has to name one of some.
template <class Impl>
std::string forced_implementation(std::string_view op, std::span<const Impl> all,
                                  const Context& context) {
  if (!context.implementation.empty()) return context.implementation;
  const std::string from_env = env_implementation();
  if (from_env.empty()) return {};
  for (const Impl& impl : all) {
    if (names_implementation(from_env, op, impl.name)) return from_env;
  }
  check_env_implementation(from_env);
  return {};
}

/// Throws kUnsupported with the whole list of refusals.
[[noreturn]] void fail_refused(std::string_view op, std::span<const Candidate> candidates);

/// What select would choose, and why not the others.
template <class Problem, class Plan, class Inputs>
Explanation explain_selection(std::string_view op,
                              std::span<const Implementation<Problem, Plan, Inputs>> all,
                              const Problem& problem, const Context& context) {
  Explanation result;
  const std::string forced = forced_implementation(op, all, context);
  bool is_known = forced.empty();
  for (const auto& impl : all) {
    const bool is_asked = forced.empty() || names_implementation(forced, op, impl.name);
    is_known = is_known || is_asked;
    std::string refusal = impl.refuse(problem);
    if (refusal.empty() && !is_asked) refusal = "another one is forced: " + forced;
    if (refusal.empty() && result.chosen.empty()) {
      result.chosen = impl.name;
      const Plan plan = impl.plan(problem);
      result.plan = to_string(plan);
      if constexpr (requires { plan.bytes_for(op, int64_t{1}); }) {
        result.workspace_bytes = plan.bytes_for(op, num_workers_of(context));
      }
    }
    result.candidates.push_back({std::string(impl.name), std::move(refusal)});
  }
  if (!is_known) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(op) + ": no implementation is called '" + forced + "'");
  }
  return result;
}

/// The implementation that runs the problem. Throws kUnsupported where none does.
template <class Problem, class Plan, class Inputs>
const Implementation<Problem, Plan, Inputs>& select(
    std::string_view op, std::span<const Implementation<Problem, Plan, Inputs>> all,
    const Problem& problem, const Context& context) {
  const std::string forced = forced_implementation(op, all, context);
  for (const auto& impl : all) {
    if (!forced.empty() && !names_implementation(forced, op, impl.name)) continue;
    if (impl.refuse(problem).empty()) return impl;
  }
  fail_refused(op, explain_selection(op, all, problem, context).candidates);
}

}  // namespace flashtile
