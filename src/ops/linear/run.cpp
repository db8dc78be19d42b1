// SPDX-License-Identifier: Apache-2.0
//
// The life of a call: validate -> problem -> select -> plan -> launch.
#include <map>
#include <memory>
#include <mutex>

#include "core/call_ranges.hpp"
#include "core/env.hpp"
#include "core/fail.hpp"
#include "core/kept_list.hpp"
#include "core/running_mark.hpp"
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

/// A call that has been checked, selected and planned. One like it is launched at once: one with
/// the same options, shapes and strides, whose outputs share no memory with anything.
struct KnownCall {
  const OpSpec* spec = nullptr;  ///< null: like no call
  LinearArgs args;               ///< without addresses
  std::string asked;             ///< implementations asked for, by the context and the environment
  LinearProblem problem;
  const LinearImplementation* implementation = nullptr;
  LinearPlan plan;
  bool is_running = false;
};

/// The last calls of a thread.
class KnownCalls {
 public:
  /// Null where no call like this one is known.
  KnownCall* find(const OpSpec& spec, const LinearArgs& args, const Context& context) {
    args_ = args;
    asked_ = context.implementation;
    asked_ += '\n';
    asked_ += env_implementation();
    KeptList<ByteRange> ranges;
    ranges.reserve(spec.tensors.size());
    for (const TensorSpec& row : spec.tensors) {
      TensorView& tensor = *row.access(&args_, {}, /*create=*/false);
      if (!tensor) continue;
      ranges.push_back(byte_range_of(tensor, row.direction != Direction::kIn));
      forget_address(tensor);
    }
    may_be_kept_ = !has_meeting(ranges);
    if (!may_be_kept_) return nullptr;
    for (const std::unique_ptr<KnownCall>& call : calls_) {
      if (call->spec != &spec || call->is_running || call->asked != asked_) continue;
      if (!(call->args == args_)) continue;
      return has_lengths_of(call->problem, spec.name, args) ? call.get() : nullptr;
    }
    return nullptr;
  }

  /// Remembers the call that was looked for last.
  void keep(const OpSpec& spec, const LinearProblem& problem,
            const LinearImplementation& implementation, const LinearPlan& plan) {
    if (!may_be_kept_) return;
    if (calls_.size() < kMaxCalls) calls_.push_back(std::make_unique<KnownCall>());
    KnownCall& call = *calls_[next_];
    next_ = (next_ + 1) % kMaxCalls;
    if (call.is_running) return;
    call.spec = nullptr;  // is like no call, should memory run out now
    call.args = args_;
    call.asked = asked_;
    call.problem = problem;
    call.implementation = &implementation;
    call.plan = plan;
    call.spec = &spec;
  }

 private:
  static constexpr size_t kMaxCalls = 16;

  LinearArgs args_;  ///< of the call that is looked for
  std::string asked_;
  bool may_be_kept_ = false;
  std::vector<std::unique_ptr<KnownCall>> calls_;
  size_t next_ = 0;
};

KnownCalls& calls_of_this_thread() {
  thread_local KnownCalls calls;
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
  if (KnownCall* call = calls_of_this_thread().find(spec, args, context)) {
    check_context(spec.name, call->problem.device, context);
    const RunningMark running(&call->is_running);
    call->implementation->launch(call->problem, call->plan, args, context);
    return;
  }
  const LinearProblem problem = make_linear_problem(op, pass, spec, args, /*has_data=*/true);
  check_context(spec.name, problem.device, context);
  const LinearImplementation& chosen =
      select(spec.name, implementations_of(op, pass), problem, context);
  const LinearPlan plan = chosen.plan(problem);
  calls_of_this_thread().keep(spec, problem, chosen, plan);
  chosen.launch(problem, plan, args, context);
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
