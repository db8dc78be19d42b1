// SPDX-License-Identifier: Apache-2.0
//
// The life of a call: validate -> problem -> select -> plan -> launch.
#include <map>
#include <memory>
#include <mutex>

#include "core/call_key.hpp"
#include "core/fail.hpp"
#include "core/kept_calls.hpp"
#include "core/validate.hpp"
#include "ops/linear/implementation.hpp"
#include "ops/linear/table.hpp"

namespace flashtile {
namespace {

/// The implementations of one op, with the names that they have there.
struct OpImplementations {
  std::vector<std::string> names;
  std::vector<LinearImplementation> list;
};

std::unique_ptr<OpImplementations> make_implementations(const LinearOp& op, LinearPass pass) {
  auto made = std::make_unique<OpImplementations>();
  made->list = cpu_linear_implementations(op, pass);
  made->list.push_back(linear_reference(op, pass));
  // Views of the names follow once none of them moves any more.
  for (const LinearImplementation& each : made->list) {
    made->names.push_back(std::string(linear_op_name(op, pass)) + "_" + std::string(each.name));
  }
  for (size_t i = 0; i < made->list.size(); ++i) made->list[i].name = made->names[i];
  return made;
}

std::span<const LinearImplementation> implementations_of(const LinearOp& op, LinearPass pass) {
  static std::mutex mutex;
  static std::map<std::pair<const LinearOp*, LinearPass>, std::unique_ptr<OpImplementations>> all;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<OpImplementations>& entry = all[{&op, pass}];
  if (entry == nullptr) entry = make_implementations(op, pass);
  return entry->list;
}

using PlannedLinearCall = PlannedCall<LinearProblem, LinearPlan, LinearArgs>;
using LinearCalls = KeptCalls<TableKey<LinearArgs>, PlannedLinearCall>;

LinearCalls& calls_of_this_thread() {
  thread_local LinearCalls calls;
  return calls;
}

}  // namespace

std::string to_string(const LinearPlan& plan) {
  std::string text(plan.implementation);
  if (plan.chunk_size > 0) {
    text += ": chunks of " + std::to_string(plan.chunk_size) + " rows, " +
            std::to_string(plan.num_tasks) + " tasks";
  }
  return text;
}

LinearImplementation linear_reference(const LinearOp& op, LinearPass pass) {
  if (pass != LinearPass::kStep) return op.reference(pass);
  LinearImplementation step = op.reference(LinearPass::kForward);
  step.launch = [](const LinearProblem& problem, const LinearPlan&, const LinearArgs& args,
                   const Context& context) {
    launch_step(problem.op->reference(LinearPass::kForward), problem, args, context);
  };
  return step;
}

std::vector<std::string> linear_implementation_names(const LinearOp& op, LinearPass pass,
                                                     DeviceType device) {
  std::vector<std::string> names;
  for (const LinearImplementation& each : implementations_of(op, pass)) {
    if (each.device == device) names.emplace_back(each.name);
  }
  return names;
}

void run_linear(const LinearOp& op, LinearPass pass, const OpSpec& spec, const LinearArgs& args,
                const Context& context) {
  if (!context.arch.empty()) {
    fail(spec.name, "arch is '", context.arch, "', but only explain takes one");
  }
  LinearCalls& calls = calls_of_this_thread();
  calls.next_key().assign(spec, args, context);
  const auto is_still = [&](PlannedLinearCall& call) {
    if (!has_lengths_of(call.problem, spec.name, args)) return false;
    check_context(spec.name, call.problem.device, context);
    return true;
  };
  const auto prepare = [&] {
    PlannedLinearCall call;
    call.problem = make_linear_problem(op, pass, spec, args, /*has_data=*/true);
    check_context(spec.name, call.problem.device, context);
    call.implementation = &select(spec.name, implementations_of(op, pass), call.problem, context);
    call.plan = call.implementation->plan(call.problem);
    return call;
  };
  calls.with_call(is_still, prepare,
                  [&](const PlannedLinearCall& call) { call.launch(args, context); });
}

Explanation explain_linear(const LinearOp& op, LinearPass pass, const OpSpec& spec,
                           const LinearArgs& args, const Context& context) {
  const TensorView& leading = *op.inputs.front().access(const_cast<LinearArgs*>(&args), {}, false);
  const bool has_data = leading.data != nullptr;
  LinearProblem problem = make_linear_problem(op, pass, spec, args, has_data);
  if (!has_data) problem.device = context.device;
  check_context(spec.name, problem.device, context);
  return explain_selection(spec.name, implementations_of(op, pass), problem, context);
}

}  // namespace flashtile
