// SPDX-License-Identifier: Apache-2.0
//
// The delta family on the CPU: chunks of products where the decay is one number a row, backward,
// and forward where there are bf16 pairs to multiply; otherwise row by row.
#include "cpu/recurrent_call.hpp"
#include "cpu/scalar_decay_call.hpp"

namespace flashtile::cpu {
namespace {

/// Elements of a state from which on products pay in a forward: packing does not depend on it.
constexpr int64_t kLeastState = 48 * 48;

/// Depends on no length, so that packed sequences have the bits of separate ones. Forward in
/// float32 rows by themselves take as many multiply-adds.
bool has_chunks(const IsaEntry& isa, const LinearProblem& problem) {
  const LinearOp& op = *problem.op;
  if (op.update != LinearUpdate::kDelta || op.gate == LinearGate::kVectorLogDecay) return false;
  const bool is_paired = problem.dtype == DType::kBF16 && isa.delta_pairs != nullptr;
  if (problem.pass == LinearPass::kBackward) return is_paired || isa.delta_floats != nullptr;
  return is_paired && problem.head_dim * problem.head_dim_v >= kLeastState;
}

}  // namespace

LinearPlan plan_delta_fwd(const IsaEntry& isa, const LinearProblem& problem) {
  return has_chunks(isa, problem) ? plan_scalar_decay_fwd(isa, problem)
                                  : plan_recurrent_fwd(isa, problem);
}

void launch_delta_fwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                      const LinearArgs& args, const Context& context) {
  const auto launch = has_chunks(isa, problem) ? launch_scalar_decay_fwd : launch_recurrent_fwd;
  launch(isa, problem, plan, args, context);
}

LinearPlan plan_delta_bwd(const IsaEntry& isa, const LinearProblem& problem) {
  return has_chunks(isa, problem) ? plan_scalar_decay_bwd(isa, problem)
                                  : plan_delta_rows_bwd(isa, problem);
}

void launch_delta_bwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                      const LinearArgs& args, const Context& context) {
  const auto launch = has_chunks(isa, problem) ? launch_scalar_decay_bwd : launch_delta_rows_bwd;
  launch(isa, problem, plan, args, context);
}

}  // namespace flashtile::cpu
