// SPDX-License-Identifier: Apache-2.0
//
// Forward of vector decay and of the delta family on the CPU. A task is one state of one sequence,
// or some strips of its columns where states are fewer than workers: columns do not depend on each
// other, so the bits are the same.
#include <algorithm>

#include "core/executor.hpp"
#include "cpu/recurrent_call.hpp"

namespace flashtile::cpu {
namespace {

/// Values of fewer columns are faster row by row.
constexpr int64_t kMinPairColumns = 48;

/// How rows of a problem are taken: one by one, or in chunks of bf16 pairs.
struct FwdKernels {
  int64_t (*scratch_bytes)(int64_t max_rows, int64_t head_dim, int64_t head_dim_v,
                           int64_t num_members);
  void (*chunk)(const RecurrentChunk& chunk);

  FwdKernels(const IsaEntry& isa, const LinearProblem& problem)
      : scratch_bytes(isa.linear->recurrent.scratch_bytes), chunk(isa.linear->recurrent.fwd_chunk) {
    const VectorDecayPairKernels* pairs = vector_decay_pairs(isa, problem);
    if (pairs == nullptr) return;
    scratch_bytes = pairs->scratch_bytes;
    chunk = pairs->fwd_chunk;
  }
};

struct RecurrentMemory {
  float* strips;
  float* state;  ///< rows of all columns, on the way from and to the caller
  char* scratch;

  RecurrentMemory(const IsaEntry& isa, const LinearProblem& problem, int64_t max_rows,
                  WorkspaceCursor& cursor) {
    const RecurrentKernels& kernels = isa.linear->recurrent;
    const int64_t columns = strip_columns(kernels, problem.head_dim_v);
    strips = cursor.take<float>(problem.head_dim * columns);
    state = cursor.take<float>(problem.head_dim * columns);
    scratch = cursor.take<char>(FwdKernels(isa, problem)
                                    .scratch_bytes(max_rows, problem.head_dim, problem.head_dim_v,
                                                   problem.heads_a_state()));
  }
};

/// Some strips of one state of one sequence.
class RecurrentStream : public StripedState {
 public:
  RecurrentStream(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                  const LinearArgs& args, const LinearSequence& sequence, int64_t head)
      : StripedState(isa, problem, plan, args, sequence, head),
        fwd_chunk_(FwdKernels(isa, problem).chunk),
        bonus_(bonus_of(problem, args, head)) {}

  void run(const StripRange& strips, const RecurrentMemory& memory) {
    load_value_strips(args_.initial_states.state, strips, memory.state, memory.strips);
    for (int64_t begin = 0; begin < sequence_.length; begin += max_rows_) {
      run_rows(begin, std::min(max_rows_, sequence_.length - begin), strips, memory);
    }
    store_value_strips(args_.final_states.state, strips, memory.state, memory.strips);
  }

 private:
  void run_rows(int64_t begin, int64_t count, const StripRange& strips,
                const RecurrentMemory& memory) {
    const LinearOp& op = *problem_.op;
    const LinearTensors& in = args_.inputs;
    q_.clear();
    out_.clear();
    for (int64_t member = 0; member < problem_.heads_a_state(); ++member) {
      const int64_t head_out = head_ * problem_.heads_a_state() + member;
      q_.push_back(rows(in.q, problem_.query_head_of(head_out), begin));
      out_.push_back(rows(args_.out, head_out, begin));
    }
    RecurrentChunk chunk{};
    chunk.update = recurrent_update(op);
    chunk.reads_before = op.reads_before;
    chunk.normalizes = args_.qk_l2norm;
    chunk.scale = static_cast<float>(problem_.scale);
    chunk.rows = count;
    chunk.max_rows = max_rows_;
    chunk.head_dim = problem_.head_dim;
    chunk.head_dim_v = problem_.head_dim_v;
    chunk.first_strip = strips.first;
    chunk.num_strips = strips.count;
    chunk.q = q_.data();
    chunk.out = out_.data();
    chunk.num_members = problem_.heads_a_state();
    chunk.k = rows(in.k, problem_.key_head_of(head_), begin);
    chunk.v = rows(in.v, head_, begin);
    chunk.g = rows(in.g, head_, begin);
    chunk.is_vector_gate = op.gate == LinearGate::kVectorLogDecay;
    chunk.beta = rows(in.beta, head_, begin);
    chunk.a = rows(in.a, head_, begin);
    chunk.b = rows(in.b, head_, begin);
    chunk.bonus = bonus_.empty() ? nullptr : bonus_.data();
    chunk.next_begin = count;
    chunk.next_end = std::min(count + max_rows_, sequence_.length - begin);
    chunk.strips = memory.strips;
    chunk.fwd_rows = kernels_.fwd_chunk;
    chunk.scratch = memory.scratch;
    fwd_chunk_(chunk);
  }

  void (*fwd_chunk_)(const RecurrentChunk& chunk);
  KeptList<float> bonus_;
  KeptList<ChunkRows> q_, out_;
};

}  // namespace

const VectorDecayPairKernels* vector_decay_pairs(const IsaEntry& isa,
                                                 const LinearProblem& problem) {
  if (problem.dtype != DType::kBF16 || problem.head_dim_v < kMinPairColumns) return nullptr;
  // Slots are columns, too, and so are key dimensions.
  const bool is_paired = problem.op->family == LinearFamily::kSlots
                             ? std::min(problem.num_slots, problem.head_dim) >= kMinPairColumns
                             : problem.op->family == LinearFamily::kVectorDecay;
  return is_paired ? isa.vector_decay_pairs : nullptr;
}

RecurrentUpdate recurrent_update(const LinearOp& op) {
  if (op.update == LinearUpdate::kDelta) return RecurrentUpdate::kDelta;
  return op.update == LinearUpdate::kLowRank ? RecurrentUpdate::kLowRank : RecurrentUpdate::kAdd;
}

KeptList<float> bonus_of(const LinearProblem& problem, const LinearArgs& args, int64_t head) {
  KeptList<float> bonus;
  for (int64_t i = 0; args.inputs.u_bonus && i < problem.head_dim; ++i) {
    bonus.push_back(static_cast<float>(load_parameter(args.inputs.u_bonus, head, i)));
  }
  return bonus;
}

LinearPlan plan_recurrent_fwd(const IsaEntry& isa, const LinearProblem& problem) {
  return plan_states<RecurrentMemory>(isa, problem);
}

void launch_recurrent_fwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                          const LinearArgs& args, const Context& context) {
  if (plan.num_tasks == 0) return;
  const KeptList<LinearSequence> sequences = linear_sequences(problem, args);
  const std::string_view op = linear_op_name(*problem.op, problem.pass);
  const double work = static_cast<double>(problem.num_rows * problem.num_out_heads) *
                      static_cast<double>(4 * problem.head_dim * problem.head_dim_v);
  const Context limited = with_workers_for(work, context);
  const int64_t num_workers = num_workers_of(limited);
  const Workspace workspace(op, context, plan.bytes_for(op, num_workers));
  const int64_t num_strips = ceil_div(problem.head_dim_v, isa.linear->recurrent.strip_width);
  const int64_t strips_a_task =
      ceil_div(num_strips, std::clamp<int64_t>(2 * num_workers / plan.num_tasks, 1, num_strips));
  const int64_t parts = ceil_div(num_strips, strips_a_task);
  parallel_for(limited, plan.num_tasks * parts, [&](int64_t task, int worker) {
    WorkspaceCursor cursor(workspace.data() + worker * plan.bytes_a_worker);
    const RecurrentMemory memory(isa, problem, plan.chunk_size, cursor);
    const int64_t stream = task / parts;
    const int64_t first = task % parts * strips_a_task;
    const auto& sequence = sequences[static_cast<size_t>(stream / problem.num_state_heads)];
    RecurrentStream(isa, problem, plan, args, sequence, stream % problem.num_state_heads)
        .run({first, std::min(strips_a_task, num_strips - first)}, memory);
  });
}

}  // namespace flashtile::cpu
