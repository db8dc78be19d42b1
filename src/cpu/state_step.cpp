// SPDX-License-Identifier: Apache-2.0
//
// Steps of scalar decay, vector decay and the delta family on the CPU: one row of each sequence,
// past states that are changed where they lie. A task is some heads of a sequence.
#include <algorithm>

#include "core/executor.hpp"
#include "cpu/recurrent_call.hpp"
#include "cpu/scalar_decay_call.hpp"

namespace flashtile::cpu {
namespace {

/// Memory moves a number in the time of some multiply-adds.
constexpr double kWorkOfMemory = 8;
/// Tasks for each worker, at most.
constexpr int64_t kTasksAWorker = 8;

struct StepMemory {
  float* state;  ///< for a state whose columns are not neighbours
  float* norm;
  float* skip;
  char* scratch;

  StepMemory(const IsaEntry& isa, const LinearProblem& problem, int64_t, WorkspaceCursor& cursor) {
    state = cursor.take<float>(problem.head_dim * problem.head_dim_v);
    norm = cursor.take<float>(problem.head_dim);
    skip = cursor.take<float>(problem.head_dim_v);
    scratch = cursor.take<char>(isa.linear->recurrent.scratch_bytes(
        1, problem.head_dim, problem.head_dim_v, problem.heads_a_state()));
  }
};

/// Heads of one sequence.
class StepStream {
 public:
  StepStream(const IsaEntry& isa, const LinearProblem& problem, const LinearArgs& args,
             const LinearSequence& sequence, const StepMemory& memory)
      : kernels_(isa.linear->recurrent),
        problem_(problem),
        args_(args),
        sequence_(sequence),
        memory_(memory),
        is_scalar_(problem.op->family == LinearFamily::kScalarDecay) {}

  void run(int64_t first, int64_t end) {
    for (int64_t head = first; head < end; ++head) run_head(head, head + 1 < end);
  }

 private:
  /// The caller's state where its rows are floats without gaps, or null.
  float* own_state(int64_t head) const {
    const TensorView& pool = args_.final_states.state;
    if (pool.dtype != DType::kF32 || pool.strides[3] != 1) return nullptr;
    return static_cast<float*>(pool.data) + sequence_.state_idx * pool.strides[0] +
           head * pool.strides[1];
  }

  void run_head(int64_t head, bool has_next) {
    StateStep step{};
    set_inputs(head, step);
    ScalarGates gates;
    if (is_scalar_) {
      gates = scalar_gates(problem_, args_, sequence_, head);
      set_gates(gates, step);
    }
    set_skip(head, step);
    const TensorView& pool = args_.final_states.state;
    step.state = own_state(head);
    step.ld = pool.strides[2];
    if (step.state == nullptr) {
      step.state = memory_.state;
      step.ld = problem_.head_dim_v;
      load_state_columns(pool, sequence_.state_idx, head, 0, problem_.head_dim_v, step.ld,
                         step.state);
    } else if (has_next) {
      step.next_state = own_state(head + 1);
    }
    if (step.divisor != ChunkDivisor::kNone) {
      step.norm = memory_.norm;
      step.norm_stride = 1;
      load_state_vector(args_.final_states.norm, sequence_.state_idx, head, 1, step.norm);
    }
    kernels_.step(step);
    if (step.state == memory_.state) {
      store_state_columns(pool, sequence_.state_idx, head, 0, problem_.head_dim_v, step.ld,
                          step.state);
    }
    if (step.norm != nullptr) {
      store_state_vector(args_.final_states.norm, sequence_.state_idx, head, 1, step.norm);
    }
    store_state(args_.final_states.max, sequence_.state_idx, head, std::span(&gates.last_max, 1));
  }

  void set_inputs(int64_t head, StateStep& step) {
    const LinearOp& op = *problem_.op;
    const LinearTensors& in = args_.inputs;
    q_.clear();
    out_.clear();
    for (int64_t member = 0; member < problem_.heads_a_state(); ++member) {
      const int64_t head_out = head * problem_.heads_a_state() + member;
      q_.push_back(row(in.q, problem_.query_head_of(head_out)));
      out_.push_back(row(args_.out, head_out));
    }
    bonus_ = bonus_of(problem_, args_, head);
    RecurrentChunk& chunk = step.inputs;
    chunk.update = recurrent_update(op);
    chunk.reads_before = op.reads_before;
    chunk.normalizes = args_.qk_l2norm;
    chunk.scale = static_cast<float>(problem_.scale);
    chunk.rows = chunk.max_rows = 1;
    chunk.head_dim = problem_.head_dim;
    chunk.head_dim_v = problem_.head_dim_v;
    chunk.q = q_.data();
    chunk.out = out_.data();
    chunk.num_members = problem_.heads_a_state();
    chunk.k = row(in.k, problem_.key_head_of(head));
    chunk.v = row(in.v, head);
    if (!is_scalar_) chunk.g = row(in.g, head);
    chunk.is_vector_gate = op.gate == LinearGate::kVectorLogDecay;
    chunk.beta = row(in.beta, head);
    chunk.a = row(in.a, head);
    chunk.b = row(in.b, head);
    chunk.bonus = bonus_.empty() ? nullptr : bonus_.data();
    chunk.scratch = memory_.scratch;
    step.weight = 1;
  }

  void set_gates(const ScalarGates& gates, StateStep& step) {
    log_decay_ = static_cast<float>(gates.log_decay[0]);
    step.inputs.g = {reinterpret_cast<char*>(&log_decay_), 0, 1, DType::kF32};
    step.weight = static_cast<float>(gates.weight[0]);
    step.divisor = scalar_decay_shape(problem_, 1).divisor;
    if (!gates.floor.empty()) step.floor = static_cast<float>(gates.floor[0]);
  }

  void set_skip(int64_t head, StateStep& step) const {
    const TensorView& D = args_.inputs.D;
    if (!D) return;
    const bool is_shared = D.ndim == 1;
    std::fill_n(memory_.skip, problem_.head_dim_v, static_cast<float>(load_parameter(D, head)));
    for (int64_t j = 0; j < problem_.head_dim_v && !is_shared; ++j) {
      memory_.skip[j] = static_cast<float>(load_parameter(D, head, j));
    }
    step.skip = memory_.skip;
  }

  ChunkRows row(const TensorView& tensor, int64_t head) const {
    return chunk_rows(timed_rows(problem_, tensor, sequence_, head), 0);
  }

  const RecurrentKernels& kernels_;
  const LinearProblem& problem_;
  const LinearArgs& args_;
  const LinearSequence& sequence_;
  const StepMemory& memory_;
  bool is_scalar_;
  float log_decay_ = 0;
  KeptList<float> bonus_;
  KeptList<ChunkRows> q_, out_;
};

}  // namespace

LinearPlan plan_state_step(const IsaEntry& isa, const LinearProblem& problem) {
  return plan_states<StepMemory>(isa, problem);
}

void launch_state_step(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                       const LinearArgs& args, const Context& context) {
  if (plan.num_tasks == 0) return;
  const LinearArgs timed = one_row_args(*problem.op, args);
  const std::string_view op = linear_op_name(*problem.op, problem.pass);
  const double work =
      kWorkOfMemory * static_cast<double>(plan.num_tasks * problem.head_dim * problem.head_dim_v);
  const Context limited = with_workers_for(work, context);
  const int64_t num_workers = num_workers_of(limited);
  const Workspace workspace(op, context, plan.bytes_for(op, num_workers));
  const int64_t heads = problem.num_state_heads;
  const int64_t heads_a_task =
      std::clamp<int64_t>(plan.num_tasks / (kTasksAWorker * num_workers), 1, heads);
  const int64_t parts = ceil_div(heads, heads_a_task);
  parallel_for(limited, problem.batch_size * parts, [&](int64_t task, int worker) {
    WorkspaceCursor cursor(workspace.data() + worker * plan.bytes_a_worker);
    const StepMemory memory(isa, problem, 1, cursor);
    const int64_t b = task / parts;
    const LinearSequence sequence{b, 0, 1, state_line(args, b)};
    const int64_t first = task % parts * heads_a_task;
    StepStream(isa, problem, timed, sequence, memory)
        .run(first, std::min(first + heads_a_task, heads));
  });
}

}  // namespace flashtile::cpu
