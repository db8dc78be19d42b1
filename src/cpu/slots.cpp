// SPDX-License-Identifier: Apache-2.0
//
// Gated slot attention on the CPU. A task is one state head of one sequence: forward over its rows,
// and in a backward then back over them.
#include <algorithm>

#include "core/executor.hpp"
#include "cpu/recurrent_call.hpp"

namespace flashtile::cpu {
namespace {

SlotsChunk slots_shape(const LinearProblem& problem, int64_t max_rows) {
  SlotsChunk shape{};
  shape.scale = static_cast<float>(problem.scale);
  shape.max_rows = max_rows;
  shape.num_slots = problem.num_slots;
  shape.head_dim = problem.head_dim;
  shape.head_dim_v = problem.head_dim_v;
  shape.num_members = problem.num_state_heads == 0 ? 0 : problem.heads_a_state();
  return shape;
}

/// Both states as strips, in the forms that a pass takes.
struct SlotsStates {
  float* keys_by_slot;
  float* keys_by_key;
  float* values_by_slot;
  float* values_by_value;

  SlotsStates(const RecurrentKernels& kernels, const LinearProblem& problem,
              WorkspaceCursor& cursor) {
    const int64_t slots = strip_columns(kernels, problem.num_slots);
    keys_by_slot = cursor.take<float>(problem.head_dim * slots);
    keys_by_key = cursor.take<float>(problem.num_slots * strip_columns(kernels, problem.head_dim));
    values_by_slot = cursor.take<float>(problem.head_dim_v * slots);
    values_by_value =
        cursor.take<float>(problem.num_slots * strip_columns(kernels, problem.head_dim_v));
  }
};

struct SlotsFwdMemory {
  SlotsStates states;
  float* rows;        ///< a state by rows, on the way from and to the caller
  float* transposed;  ///< likewise
  char* scratch;

  SlotsFwdMemory(const IsaEntry& isa, const LinearProblem& problem, int64_t max_rows,
                 WorkspaceCursor& cursor)
      : states(isa.linear->recurrent, problem, cursor) {
    const int64_t longest = strip_columns(
        isa.linear->recurrent, std::max({problem.num_slots, problem.head_dim, problem.head_dim_v}));
    rows = cursor.take<float>(longest * longest);
    transposed = cursor.take<float>(longest * longest);
    scratch = cursor.take<char>(isa.linear->slots.scratch_bytes(slots_shape(problem, max_rows)));
  }
};

struct SlotsBwdMemory {
  SlotsFwdMemory forward;
  SlotsStates dstates;
  float* weights;  ///< of all rows of the sequence and all output heads
  float* dlogits;
  float* read_sums;
  double* passing;

  SlotsBwdMemory(const IsaEntry& isa, const LinearProblem& problem, int64_t max_rows,
                 WorkspaceCursor& cursor)
      : forward(isa, problem, max_rows, cursor), dstates(isa.linear->recurrent, problem, cursor) {
    const int64_t slots = strip_columns(isa.linear->recurrent, problem.num_slots);
    const int64_t members = slots_shape(problem, max_rows).num_members;
    weights = cursor.take<float>(problem.max_seqlen * members * slots);
    dlogits = cursor.take<float>(problem.max_seqlen * members * slots);
    read_sums = cursor.take<float>(problem.max_seqlen * slots);
    passing = cursor.take<double>(problem.num_slots);
  }
};

/// One state head of one sequence.
class SlotsStream {
 public:
  SlotsStream(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
              const LinearArgs& args, const LinearSequence& sequence, int64_t head,
              const SlotsFwdMemory& memory)
      : kernels_(isa.linear->recurrent),
        slots_(isa.linear->slots),
        problem_(problem),
        args_(args),
        sequence_(sequence),
        head_(head),
        max_rows_(plan.chunk_size),
        memory_(memory) {}

  void run_forward() {
    load(args_.initial_states, memory_.states, /*has_all=*/false);
    for (int64_t n = 0; n < num_chunks(); ++n) slots_.fwd_chunk(make_chunk(n, memory_.states));
    store(args_.final_states, memory_.states);
  }

  void run_backward(const SlotsBwdMemory& memory) {
    load(args_.initial_states, memory_.states, /*has_all=*/true);
    load(args_.dfinal_states, memory.dstates, /*has_all=*/true);
    for (int64_t n = 0; n < num_chunks(); ++n) {
      slots_.bwd_queries(make_bwd_chunk(n, memory_.states, memory));
    }
    slots_.state_dots(make_bwd_chunk(0, memory_.states, memory),
                      make_bwd_chunk(0, memory.dstates, memory));
    for (int64_t n = num_chunks() - 1; n >= 0; --n) {
      slots_.bwd_keys(make_bwd_chunk(n, memory.dstates, memory));
    }
    store(args_.dinitial_states, memory.dstates);
  }

 private:
  int64_t num_chunks() const { return ceil_div(sequence_.length, max_rows_); }

  /// A state of `rows` by `cols` as strips of its columns, and where they are wanted of its rows.
  void load_forms(const TensorView& tensor, int64_t rows, int64_t cols, float* by_column,
                  float* by_row) const {
    const int64_t ld = strip_columns(kernels_, cols);
    const int64_t ld_transposed = strip_columns(kernels_, rows);
    std::fill_n(memory_.rows, rows * ld, 0.0f);
    load_state_columns(tensor, sequence_.state_idx, head_, 0, cols, ld, memory_.rows);
    if (by_column != nullptr) {
      kernels_.load_strips(memory_.rows, ld, rows, cols, 0, ld / kernels_.strip_width, by_column);
    }
    if (by_row == nullptr) return;
    for (int64_t j = 0; j < cols; ++j) {
      for (int64_t i = 0; i < rows; ++i) {
        memory_.transposed[j * ld_transposed + i] = memory_.rows[i * ld + j];
      }
    }
    kernels_.load_strips(memory_.transposed, ld_transposed, cols, rows, 0,
                         ld_transposed / kernels_.strip_width, by_row);
  }
  void load(const LinearStates& tensors, const SlotsStates& states, bool has_all) const {
    load_forms(tensors.state_k, problem_.head_dim, problem_.num_slots, states.keys_by_slot,
               has_all ? states.keys_by_key : nullptr);
    load_forms(tensors.state, problem_.num_slots, problem_.head_dim_v, states.values_by_value,
               has_all ? states.values_by_slot : nullptr);
  }

  void store_form(const TensorView& tensor, int64_t rows, int64_t cols, const float* by_column) {
    const int64_t ld = strip_columns(kernels_, cols);
    kernels_.store_strips(by_column, rows, cols, 0, ld / kernels_.strip_width, memory_.rows, ld);
    store_state_columns(tensor, sequence_.state_idx, head_, 0, cols, ld, memory_.rows);
  }
  void store(const LinearStates& tensors, const SlotsStates& states) {
    store_form(tensors.state_k, problem_.head_dim, problem_.num_slots, states.keys_by_slot);
    store_form(tensors.state, problem_.num_slots, problem_.head_dim_v, states.values_by_value);
  }

  ChunkRows rows(const TensorView& tensor, int64_t head, int64_t begin) const {
    return chunk_rows(timed_rows(problem_, tensor, sequence_, head), begin);
  }
  const ChunkRows* member_rows(const TensorView& tensor, int64_t begin,
                               std::vector<ChunkRows>& list) const {
    list.clear();
    for (int64_t member = 0; member < problem_.heads_a_state(); ++member) {
      list.push_back(rows(tensor, head_ * problem_.heads_a_state() + member, begin));
    }
    return list.data();
  }

  SlotsChunk make_chunk(int64_t n, const SlotsStates& states) {
    const LinearTensors& in = args_.inputs;
    const int64_t begin = n * max_rows_;
    SlotsChunk chunk = slots_shape(problem_, max_rows_);
    chunk.rows = std::min(max_rows_, sequence_.length - begin);
    chunk.q = member_rows(in.q, begin, q_);
    chunk.out = member_rows(args_.out, begin, out_);
    chunk.k = rows(in.k, head_, begin);
    chunk.v = rows(in.v, head_, begin);
    chunk.s = rows(in.s, head_, begin);
    chunk.g = rows(in.g, head_, begin);
    chunk.keys_by_slot = states.keys_by_slot;
    chunk.keys_by_key = states.keys_by_key;
    chunk.values_by_slot = states.values_by_slot;
    chunk.values_by_value = states.values_by_value;
    chunk.scratch = memory_.scratch;
    return chunk;
  }

  SlotsChunk make_bwd_chunk(int64_t n, const SlotsStates& states, const SlotsBwdMemory& memory) {
    const LinearTensors& gradients = args_.gradients;
    const int64_t begin = n * max_rows_;
    const int64_t slots = strip_columns(kernels_, problem_.num_slots);
    SlotsChunk chunk = make_chunk(n, states);
    chunk.ends_sequence = begin + max_rows_ >= sequence_.length;
    chunk.dout = member_rows(args_.dout, begin, dout_);
    chunk.dq = member_rows(gradients.q, begin, dq_);
    chunk.dk = rows(gradients.k, head_, begin);
    chunk.dv = rows(gradients.v, head_, begin);
    chunk.ds = rows(gradients.s, head_, begin);
    chunk.dg = rows(gradients.g, head_, begin);
    chunk.weights = memory.weights + begin * chunk.num_members * slots;
    chunk.dlogits = memory.dlogits + begin * chunk.num_members * slots;
    chunk.read_sums = memory.read_sums + begin * slots;
    chunk.passing = memory.passing;
    return chunk;
  }

  const RecurrentKernels& kernels_;
  const SlotsKernels& slots_;
  const LinearProblem& problem_;
  const LinearArgs& args_;
  const LinearSequence& sequence_;
  int64_t head_;
  int64_t max_rows_;
  const SlotsFwdMemory& memory_;
  std::vector<ChunkRows> q_, out_, dout_, dq_;
};

/// Calls body(sequence, head, cursor) for each state head of each sequence, in parallel.
template <class Body>
void for_each_slots_task(const LinearProblem& problem, const LinearPlan& plan,
                         const LinearArgs& args, const Context& context, int64_t passes,
                         const Body& body) {
  const std::vector<LinearSequence> sequences = linear_sequences(problem, args);
  const std::string_view op = linear_op_name(*problem.op, problem.pass);
  const double work =
      static_cast<double>(problem.num_rows * problem.num_out_heads) *
      static_cast<double>(passes * problem.num_slots * (problem.head_dim + problem.head_dim_v));
  const Context limited = with_workers_for(work, context);
  const Workspace workspace(op, context, plan.bytes_for(op, num_workers_of(limited)));
  parallel_for(limited, plan.num_tasks, [&](int64_t task, int worker) {
    WorkspaceCursor cursor(workspace.data() + worker * plan.bytes_a_worker);
    body(sequences[static_cast<size_t>(task / problem.num_state_heads)],
         task % problem.num_state_heads, cursor);
  });
}

}  // namespace

LinearPlan plan_slots_fwd(const IsaEntry& isa, const LinearProblem& problem) {
  return plan_states<SlotsFwdMemory>(isa, problem);
}

void launch_slots_fwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                      const LinearArgs& args, const Context& context) {
  for_each_slots_task(problem, plan, args, context, 3,
                      [&](const LinearSequence& sequence, int64_t head, WorkspaceCursor& cursor) {
                        const SlotsFwdMemory memory(isa, problem, plan.chunk_size, cursor);
                        SlotsStream(isa, problem, plan, args, sequence, head, memory).run_forward();
                      });
}

LinearPlan plan_slots_bwd(const IsaEntry& isa, const LinearProblem& problem) {
  return plan_states<SlotsBwdMemory>(isa, problem);
}

void launch_slots_bwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                      const LinearArgs& args, const Context& context) {
  for_each_slots_task(
      problem, plan, args, context, 10,
      [&](const LinearSequence& sequence, int64_t head, WorkspaceCursor& cursor) {
        const SlotsBwdMemory memory(isa, problem, plan.chunk_size, cursor);
        SlotsStream(isa, problem, plan, args, sequence, head, memory.forward).run_backward(memory);
      });
}

}  // namespace flashtile::cpu
