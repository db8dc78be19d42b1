// SPDX-License-Identifier: Apache-2.0
//
// The launchers of recurrences that are worked out row by row on the CPU: vector decay, slots and
// the delta family.
#pragma once

#include <algorithm>

#include "core/workspace.hpp"
#include "cpu/attention_call.hpp"
#include "cpu/linear_call.hpp"

namespace flashtile::cpu {

/// Rows whose inputs are packed together.
inline constexpr int64_t kRecurrentRows = 32;

/// Chunks from one state that is kept for a backward over pairs to the next.
inline constexpr int64_t kKeptDistance = 2;

/// The number of the kept state before a row of a sequence, -1 where there is none.
inline int64_t kept_state_before(int64_t row) {
  constexpr int64_t kDistance = kKeptDistance * kRecurrentRows;
  return row == 0 || row % kDistance != 0 ? -1 : row / kDistance;
}
/// So many numbers are there.
inline int64_t num_kept_states(int64_t max_seqlen) {
  return ceil_div(max_seqlen, kKeptDistance * kRecurrentRows);
}

/// Columns of `dim` with those that fill its last strip.
inline int64_t strip_columns(const RecurrentKernels& kernels, int64_t dim) {
  return ceil_div(dim, kernels.strip_width) * kernels.strip_width;
}

/// How a row of an op changes the state.
RecurrentUpdate recurrent_update(const LinearOp& op);

/// The kernels that take chunks of a problem of vector decay; null where rows by themselves do.
const VectorDecayPairKernels* vector_decay_pairs(const IsaEntry& isa, const LinearProblem& problem);

/// Of one head, as kernels take it; empty where there is none.
KeptList<float> bonus_of(const LinearProblem& problem, const LinearArgs& args, int64_t head);

/// One state of one sequence, which kernels take in strips and some rows at a time.
class StripedState {
 public:
  int64_t num_chunks() const { return ceil_div(sequence_.length, max_rows_); }
  StripRange value_strips() const { return {0, ld_v_ / kernels_.strip_width}; }
  StripRange key_strips() const { return {0, ld_k_ / kernels_.strip_width}; }

 protected:
  StripedState(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
               const LinearArgs& args, const LinearSequence& sequence, int64_t head)
      : kernels_(isa.linear->recurrent),
        problem_(problem),
        args_(args),
        sequence_(sequence),
        head_(head),
        max_rows_(plan.chunk_size),
        ld_k_(strip_columns(kernels_, problem.head_dim)),
        ld_v_(strip_columns(kernels_, problem.head_dim_v)) {}

  /// A head of a tensor from row `begin` of the sequence on.
  ChunkRows rows(const TensorView& tensor, int64_t head, int64_t begin) const {
    return chunk_rows(timed_rows(problem_, tensor, sequence_, head), begin);
  }

  /// Strips of a state, or of a gradient of one, from the caller's tensor, and back to it; without
  /// a tensor they are zeros. `rows` is room for the state by rows.
  void load_value_strips(const TensorView& tensor, const StripRange& strips, float* rows,
                         float* to) const;
  void store_value_strips(const TensorView& tensor, const StripRange& strips, float* rows,
                          const float* from) const;
  /// The same of the transposed state, with room for that too.
  void load_key_strips(const TensorView& tensor, const StripRange& strips, float* rows,
                       float* transposed_rows, float* to) const;

  const RecurrentKernels& kernels_;
  const LinearProblem& problem_;
  const LinearArgs& args_;
  const LinearSequence& sequence_;
  int64_t head_;
  int64_t max_rows_;
  int64_t ld_k_, ld_v_;  ///< columns of whole strips

 private:
  void load_rows(const TensorView& tensor, int64_t first, int64_t count, float* rows) const;
  int64_t columns_of(const StripRange& strips) const {
    return std::min((strips.first + strips.count) * kernels_.strip_width, problem_.head_dim_v) -
           strips.first * kernels_.strip_width;
  }
};

/// A plan with one task for each state of each sequence; `Memory` is what a worker takes.
template <class Memory>
LinearPlan plan_states(const IsaEntry& isa, const LinearProblem& problem,
                       int64_t max_rows = kRecurrentRows) {
  LinearPlan plan;
  plan.implementation = isa_name(isa.isa);
  plan.chunk_size = std::clamp<int64_t>(problem.max_seqlen, 1, max_rows);
  plan.num_tasks = problem.batch_size * problem.num_state_heads;
  if (plan.num_tasks == 0) return plan;
  WorkspaceCursor cursor;
  Memory(isa, problem, plan.chunk_size, cursor);
  plan.bytes_a_worker = cursor.used();
  return plan;
}

LinearPlan plan_recurrent_fwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_recurrent_fwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                          const LinearArgs& args, const Context& context);

/// Of scalar decay, too.
LinearPlan plan_state_step(const IsaEntry& isa, const LinearProblem& problem);
void launch_state_step(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                       const LinearArgs& args, const Context& context);

LinearPlan plan_vector_decay_bwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_vector_decay_bwd(const IsaEntry& isa, const LinearProblem& problem,
                             const LinearPlan& plan, const LinearArgs& args,
                             const Context& context);

LinearPlan plan_slots_fwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_slots_fwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                      const LinearArgs& args, const Context& context);
LinearPlan plan_slots_bwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_slots_bwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                      const LinearArgs& args, const Context& context);

LinearPlan plan_delta_fwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_delta_fwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                      const LinearArgs& args, const Context& context);
LinearPlan plan_delta_rows_bwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_delta_rows_bwd(const IsaEntry& isa, const LinearProblem& problem,
                           const LinearPlan& plan, const LinearArgs& args, const Context& context);
LinearPlan plan_delta_bwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_delta_bwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                      const LinearArgs& args, const Context& context);

}  // namespace flashtile::cpu
