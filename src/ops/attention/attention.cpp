// SPDX-License-Identifier: Apache-2.0
#include "flashtile/attention.hpp"

#include "core/fail.hpp"
#include "core/kept.hpp"
#include "core/memory_errors.hpp"
#include "core/validate.hpp"
#include "ops/attention/append.hpp"
#include "ops/attention/call_memory.hpp"
#include "ops/attention/implementations.hpp"
#include "ops/attention/reference.hpp"

namespace flashtile {
namespace {

/// The backends' implementations, then the reference.
std::vector<AttentionImplementation> list_implementations(bool is_backward) {
  std::vector<AttentionImplementation> all = cuda_attention_implementations(is_backward);
  for (const auto& entry : cpu_attention_implementations(is_backward)) all.push_back(entry);
  all.push_back(attention_reference(is_backward));
  return all;
}

bool has_memory(const AttentionArgs& args) {
  return args.q.data != nullptr || args.k.data != nullptr || args.v.data != nullptr;
}

/// Says which GPU a plan is made for: the tensors', or the one of a named architecture.
void choose_gpu(std::string_view op, const Context& context, AttentionProblem& problem) {
  if (!context.arch.empty()) {
    problem.gpu = named_gpu_model(context.arch);
    if (problem.gpu == nullptr) {
      std::string known;
      for (const std::string& name : known_gpu_archs()) known += " " + name;
      fail(op, "arch is '", context.arch, "', expected one of", known);
    }
    problem.device = {DeviceType::kCuda, 0};
  } else if (problem.device.type == DeviceType::kCuda) {
    problem.gpu = &gpu_model(problem.device);
  }
}

AttentionProblem problem_to_explain(const AttentionArgs& args, bool is_backward,
                                    const Context& context) {
  const bool is_call = has_memory(args);
  AttentionProblem problem = is_call ? make_attention_problem(args, is_backward)
                                     : make_attention_problem_from_shapes(args, is_backward);
  if (!is_call) problem.device = context.device;
  check_context(attention_op_name(is_backward), problem.device, context);
  choose_gpu(attention_op_name(is_backward), context, problem);
  return problem;
}

PreparedCall prepare(const AttentionArgs& args, bool is_backward, const Context& context) {
  const std::string_view op = attention_op_name(is_backward);
  PreparedCall call;
  call.problem = make_attention_problem(args, is_backward, &call.index_checks);
  choose_gpu(op, context, call.problem);
  call.implementation = &select(op, attention_implementations(is_backward), call.problem, context);
  call.plan = call.implementation->plan(call.problem);
  return call;
}

void launch(const PreparedCall& call, const AttentionArgs& args, const Context& context) {
  if (call.problem.device == context.device) {
    call.launch(args, context);
    return;
  }
  // The tensors say where the call runs.
  Context placed = context;
  placed.device = call.problem.device;
  call.launch(args, placed);
}

CallMemory& calls_of_this_thread() {
  thread_local CallMemory memory;
  return memory;
}

/// What use(call) gives. Calls come by the thousand, and planning one takes longer than launching
/// it; a call that was asked for its workspace is planned when it runs.
template <class Use>
auto with_call(const AttentionArgs& args, bool is_backward, const Context& context,
               const Use& use) {
  return calls_of_this_thread().with_call(
      args, is_backward, context, [&] { return prepare(args, is_backward, context); }, use);
}

/// The arguments of a call, in memory that an earlier one has left: texts and lists of the options
/// are copied into it.
class CallArgs {
 public:
  CallArgs(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out,
           const TensorView& lse, const AttentionOptions& options) {
    static_cast<AttentionOptions&>(*args_) = options;
    args_->q = q;
    args_->k = k;
    args_->v = v;
    args_->out = out;
    args_->lse = lse;
    args_->dout = args_->dq = args_->dk = args_->dv = {};
  }
  CallArgs(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
           const TensorView& out, const TensorView& lse, const TensorView& dq, const TensorView& dk,
           const TensorView& dv, const AttentionOptions& options)
      : CallArgs(q, k, v, out, lse, options) {
    args_->dout = dout;
    args_->dq = dq;
    args_->dk = dk;
    args_->dv = dv;
  }

  operator const AttentionArgs&() const { return *args_; }  // NOLINT: they are the arguments

 private:
  Kept<AttentionArgs> args_;
};

const Error& out_of_memory_of(bool is_backward) {
  static const Error forward = out_of_memory(attention_op_name(false));
  static const Error backward = out_of_memory(attention_op_name(true));
  return is_backward ? backward : forward;
}

void run_checked(const AttentionArgs& args, bool is_backward, const Context& context) {
  const std::string_view op = attention_op_name(is_backward);
  if (!context.arch.empty()) {
    fail(op, "arch is '", context.arch, "', but only explain takes one");
  }
  if (args.q) check_context(op, args.q.device, context);
  with_call(args, is_backward, context, [&](const PreparedCall& call) {
    if (call.problem.has_new_keys && call.problem.device.type == DeviceType::kCpu) {
      // On the CPU this is a pass of its own, the same before every implementation.
      const AppendedCall appended(call.problem, args, context);
      call.launch(appended.args(), context);
      return;
    }
    launch(call, args, context);
  });
}

}  // namespace

std::span<const AttentionImplementation> attention_implementations(bool is_backward) {
  static const std::vector<AttentionImplementation> forward = list_implementations(false);
  static const std::vector<AttentionImplementation> backward = list_implementations(true);
  return is_backward ? backward : forward;
}

std::vector<std::string> attention_implementation_names(bool is_backward, DeviceType device) {
  std::vector<std::string> names;
  for (const auto& implementation : attention_implementations(is_backward)) {
    if (implementation.device == device) names.emplace_back(implementation.name);
  }
  return names;
}

void run_attention(const AttentionArgs& args, bool is_backward, const Context& context) {
  with_memory_errors(out_of_memory_of(is_backward),
                     [&] { run_checked(args, is_backward, context); });
}

int64_t attention_workspace_bytes(const AttentionArgs& args, bool is_backward,
                                  const Context& context) {
  return with_memory_errors(out_of_memory_of(is_backward), [&] {
    const std::string_view op = attention_op_name(is_backward);
    const auto bytes = [&](const PreparedCall& call) {
      return call.plan.bytes_for(op, num_workers_of(context));
    };
    if (args.q) check_context(op, args.q.device, context);
    return with_call(args, is_backward, context, bytes);
  });
}

Explanation explain_attention(const AttentionArgs& args, bool is_backward, const Context& context) {
  return with_memory_errors(out_of_memory_of(is_backward), [&] {
    const AttentionProblem problem = problem_to_explain(args, is_backward, context);
    return explain_selection(attention_op_name(is_backward), attention_implementations(is_backward),
                             problem, context);
  });
}

std::vector<KernelChoice> attention_kernels(const AttentionArgs& args, bool is_backward,
                                            const Context& context) {
  const AttentionProblem problem = problem_to_explain(args, is_backward, context);
  const AttentionImplementation& implementation = select(
      attention_op_name(is_backward), attention_implementations(is_backward), problem, context);
  return implementation.plan(problem).kernels;
}

void attention_fwd(const TensorView& q, const TensorView& k, const TensorView& v,
                   const TensorView& out, const TensorView& lse, const AttentionOptions& options,
                   const Context& context) {
  with_memory_errors(out_of_memory_of(false), [&] {
    run_attention(CallArgs(q, k, v, out, lse, options), /*is_backward=*/false, context);
  });
}

void attention_bwd(const TensorView& dout, const TensorView& q, const TensorView& k,
                   const TensorView& v, const TensorView& out, const TensorView& lse,
                   const TensorView& dq, const TensorView& dk, const TensorView& dv,
                   const AttentionOptions& options, const Context& context) {
  with_memory_errors(out_of_memory_of(true), [&] {
    run_attention(CallArgs(dout, q, k, v, out, lse, dq, dk, dv, options), /*is_backward=*/true,
                  context);
  });
}

Explanation explain_attention_fwd(const TensorView& q, const TensorView& k, const TensorView& v,
                                  const TensorView& out, const TensorView& lse,
                                  const AttentionOptions& options, const Context& context) {
  return with_memory_errors(out_of_memory_of(false), [&] {
    return explain_attention(CallArgs(q, k, v, out, lse, options), /*is_backward=*/false, context);
  });
}

Explanation explain_attention_bwd(const TensorView& dout, const TensorView& q, const TensorView& k,
                                  const TensorView& v, const TensorView& out, const TensorView& lse,
                                  const TensorView& dq, const TensorView& dk, const TensorView& dv,
                                  const AttentionOptions& options, const Context& context) {
  return with_memory_errors(out_of_memory_of(true), [&] {
    return explain_attention(CallArgs(dout, q, k, v, out, lse, dq, dk, dv, options),
                             /*is_backward=*/true, context);
  });
}

}  // namespace flashtile
