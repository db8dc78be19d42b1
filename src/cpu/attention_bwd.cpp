// SPDX-License-Identifier: Apache-2.0
//
// Backward on the CPU. First lse and delta of all queries; then pairs (sequence, kv head) in waves:
//
//   pack     query blocks of each head, key blocks
//   blocks   task (pair, part of its key blocks): dK, dV of its blocks, rounded once and stored,
//   and
//            a partial dQ of each head
//   store    dQ = sum of the parts, in order, rounded once
//
// The parts depend on the problem alone, so the bits do not depend on the number of workers.
#include <algorithm>
#include <limits>

#include "core/count.hpp"
#include "core/executor.hpp"
#include "cpu/attention_bwd_wave.hpp"

namespace flashtile::cpu {
namespace {

constexpr int64_t kBlockN = 128;
constexpr int64_t kBlockNScore = 64;  ///< with a user score: one strip of its programs
constexpr int64_t kMaxSplits = 4;
constexpr int64_t kEnoughTasks = 16;  ///< with as many pairs, key blocks are not split

}  // namespace

AttentionPlan plan_attention_bwd(const IsaEntry& isa, const AttentionProblem& problem) {
  AttentionPlan plan;
  plan.implementation = isa.backward_name;
  plan.details = std::make_shared<const KeptVariants>();
  plan.block_m = kBlockM;
  const bool has_program = !problem.user_score.empty() && !line_of(problem);
  plan.block_n =
      std::min(has_program ? kBlockNScore : kBlockN, whole_columns(problem.max_seqlen_k));
  const int64_t num_pairs = std::max<int64_t>(
      1, (Count(problem.batch_size) * problem.num_heads_kv).value("attention_bwd", "tasks"));
  const int64_t num_blocks = std::max<int64_t>(1, ceil_div(problem.max_seqlen_k, plan.block_n));
  // How many pairs there are is up to the batch.
  const int64_t wanted = problem.batch_invariant ? kMaxSplits : ceil_div(kEnoughTasks, num_pairs);
  plan.num_splits = std::min({kMaxSplits, wanted, num_blocks});
  plan.num_tasks = (Count(num_pairs) * plan.num_splits).value("attention_bwd", "tasks");
  const BwdShape shape(operands_of(isa, problem), problem, plan);
  plan.workspace_bytes = (Count(kExtraBytes) + AuxGradients::bytes(problem, plan.num_tasks))
                             .value("attention_bwd", "bytes of workspace");
  plan.worker_bytes =
      (Count(shape.pair_bytes(problem.max_seqlen_q, problem.max_seqlen_k)) + shape.scratch_bytes)
          .value("attention_bwd", "bytes of workspace");
  return plan;
}

void launch_attention_bwd(const IsaEntry& isa, const AttentionProblem& problem,
                          const AttentionPlan& plan, const AttentionArgs& args,
                          const Context& context) {
  const AttentionCall call(problem, plan, args);
  const Context limited = with_workers_for(call.work(), context);
  BwdLaunch launch(isa, call, plan, limited);
  launch.run();
  call.check_index_errors();
}

}  // namespace flashtile::cpu
