// SPDX-License-Identifier: Apache-2.0
//
// Backward of the delta family on the CPU, row by row. A task is one key head of one sequence with
// all states that read it; where these are fewer than workers, parts of a state's value dimensions
// and then parts of its key dimensions are tasks. What a strip gives does not depend on that.
#include <algorithm>

#include "core/executor.hpp"
#include "cpu/recurrent_call.hpp"

namespace flashtile::cpu {
namespace {

/// What is kept of all rows of a sequence, for one state and for the sums over those that share its
/// key head.
struct DeltaRowMemory {
  float* read;
  float* dread;
  float* dq;
  float* dkeys;
  float* dq_sum;
  float* dk_sum;
  double* gate_sums;
  double* passing;

  DeltaRowMemory(const IsaEntry& isa, const LinearProblem& problem, WorkspaceCursor& cursor) {
    const RecurrentKernels& kernels = isa.linear->recurrent;
    const int64_t rows = problem.max_seqlen;
    const int64_t keys = strip_columns(kernels, problem.head_dim);
    const int64_t values = strip_columns(kernels, problem.head_dim_v);
    read = cursor.take<float>(rows * values);
    dread = cursor.take<float>(rows * values);
    dq = cursor.take<float>(rows * keys);
    dkeys = cursor.take<float>(rows * keys);
    const bool is_shared = problem.states_a_key() > 1;
    dq_sum = is_shared ? cursor.take<float>(rows * keys) : dq;
    dk_sum = is_shared ? cursor.take<float>(rows * keys) : dkeys;
    gate_sums = cursor.take<double>(rows * (keys / kernels.strip_width));
    passing = cursor.take<double>(keys);
  }
};

/// What a worker needs to go over some strips.
struct DeltaStripMemory {
  float* state;   ///< strips
  float* dstate;  ///< of key passes; those of value passes have one at a time
  float* rows;    ///< by rows, on the way from and to the caller
  float* transposed_rows;
  char* scratch;

  DeltaStripMemory(const IsaEntry& isa, const LinearProblem& problem, int64_t max_rows,
                   WorkspaceCursor& cursor) {
    const RecurrentKernels& kernels = isa.linear->recurrent;
    const int64_t by_keys = problem.head_dim_v * strip_columns(kernels, problem.head_dim);
    const int64_t by_values = problem.head_dim * strip_columns(kernels, problem.head_dim_v);
    state = cursor.take<float>(std::max(by_keys, by_values));
    dstate = cursor.take<float>(by_keys);
    rows = cursor.take<float>(by_values);
    transposed_rows = cursor.take<float>(by_keys);
    scratch = cursor.take<char>(
        kernels.delta_bwd.scratch_bytes(max_rows, problem.head_dim, problem.head_dim_v));
  }
};

struct DeltaBwdMemory {
  DeltaRowMemory rows;
  DeltaStripMemory strips;

  DeltaBwdMemory(const IsaEntry& isa, const LinearProblem& problem, int64_t max_rows,
                 WorkspaceCursor& cursor)
      : rows(isa, problem, cursor), strips(isa, problem, max_rows, cursor) {}
};

/// One state of one sequence.
class DeltaBwdState {
 public:
  DeltaBwdState(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                const LinearArgs& args, const LinearSequence& sequence, int64_t head,
                const DeltaRowMemory& memory)
      : kernels_(isa.linear->recurrent),
        problem_(problem),
        args_(args),
        sequence_(sequence),
        head_(head),
        max_rows_(plan.chunk_size),
        ld_k_(strip_columns(kernels_, problem.head_dim)),
        ld_v_(strip_columns(kernels_, problem.head_dim_v)),
        memory_(memory) {}

  StripRange value_strips() const { return {0, ld_v_ / kernels_.strip_width}; }
  StripRange key_strips() const { return {0, ld_k_ / kernels_.strip_width}; }

  /// What each row reads of the state, and what it owes its gradient.
  void run_values(const StripRange& strips, const DeltaStripMemory& memory) {
    load_values(args_.initial_states.state, strips, memory);
    for_each_chunk([&](const DeltaBwdChunk& c) { kernels_.delta_bwd.values_forward(c); }, strips,
                   memory.state, memory);
    load_values(args_.dfinal_states.state, strips, memory);
    for_each_chunk_back([&](const DeltaBwdChunk& c) { kernels_.delta_bwd.values_backward(c); },
                        strips, memory.state, memory);
    const int64_t first = strips.first * kernels_.strip_width;
    kernels_.store_strips(memory.state, problem_.head_dim, problem_.head_dim_v, strips.first,
                          strips.count, memory.rows, ld_v_);
    store_state_columns(args_.dinitial_states.state, sequence_.batch_idx, head_, first,
                        std::min(strips.count * kernels_.strip_width, problem_.head_dim_v - first),
                        ld_v_, memory.rows + first);
  }

  /// Gradients of keys, queries and decays; after all of run_values. Calls behind(n) after the last
  /// pass over chunk n.
  template <class Behind>
  void run_keys(const StripRange& strips, const DeltaStripMemory& memory, const Behind& behind) {
    load_keys(args_.initial_states.state, strips, memory, memory.state);
    for_each_chunk([&](const DeltaBwdChunk& c) { kernels_.delta_bwd.keys_forward(c); }, strips,
                   memory.state, memory);
    load_keys(args_.dfinal_states.state, strips, memory, memory.dstate);
    kernels_.delta_bwd.state_dots(make_chunk(0, strips, memory.dstate, memory), memory.state,
                                  memory.dstate);
    int64_t n = num_chunks();
    for_each_chunk_back(
        [&](const DeltaBwdChunk& c) {
          kernels_.delta_bwd.keys_backward(c);
          behind(--n);
        },
        strips, memory.dstate, memory);
  }

  /// Chunk n of what is left, once all strips are done.
  void finish_state(int64_t n, const DeltaStripMemory& memory) {
    kernels_.delta_bwd.finish_state(make_chunk(n * max_rows_, {0, 0}, nullptr, memory));
  }
  /// Likewise, of the last state that shares the key head.
  void finish_keys(int64_t n, const DeltaStripMemory& memory) {
    kernels_.delta_bwd.finish_keys(make_chunk(n * max_rows_, {0, 0}, nullptr, memory));
  }
  int64_t num_chunks() const { return ceil_div(sequence_.length, max_rows_); }

 private:
  template <class Body>
  void for_each_chunk(const Body& body, const StripRange& strips, float* state,
                      const DeltaStripMemory& memory) {
    for (int64_t n = 0; n < num_chunks(); ++n) {
      DeltaBwdChunk chunk = make_chunk(n * max_rows_, strips, state, memory);
      chunk.next_begin = chunk.rows;
      chunk.next_end = std::min(chunk.rows + max_rows_, sequence_.length - n * max_rows_);
      body(chunk);
    }
  }
  template <class Body>
  void for_each_chunk_back(const Body& body, const StripRange& strips, float* state,
                           const DeltaStripMemory& memory) {
    for (int64_t n = num_chunks() - 1; n >= 0; --n) {
      DeltaBwdChunk chunk = make_chunk(n * max_rows_, strips, state, memory);
      if (n > 0) chunk.next_begin = -max_rows_;
      body(chunk);
    }
  }

  /// A state or its gradient as rows of all columns.
  void load_rows(const TensorView& tensor, float* rows) const {
    std::fill_n(rows, problem_.head_dim * ld_v_, 0.0f);
    load_state_columns(tensor, sequence_.batch_idx, head_, 0, problem_.head_dim_v, ld_v_, rows);
  }
  void load_values(const TensorView& tensor, const StripRange& strips,
                   const DeltaStripMemory& memory) const {
    load_rows(tensor, memory.rows);
    kernels_.load_strips(memory.rows, ld_v_, problem_.head_dim, problem_.head_dim_v, strips.first,
                         strips.count, memory.state);
  }
  void load_keys(const TensorView& tensor, const StripRange& strips, const DeltaStripMemory& memory,
                 float* to) const {
    load_rows(tensor, memory.rows);
    for (int64_t j = 0; j < problem_.head_dim_v; ++j) {
      for (int64_t i = 0; i < problem_.head_dim; ++i) {
        memory.transposed_rows[j * ld_k_ + i] = memory.rows[i * ld_v_ + j];
      }
    }
    kernels_.load_strips(memory.transposed_rows, ld_k_, problem_.head_dim_v, problem_.head_dim,
                         strips.first, strips.count, to);
  }

  ChunkRows rows(const TensorView& tensor, int64_t head, int64_t begin) const {
    return chunk_rows(timed_rows(problem_, tensor, sequence_, head), begin);
  }

  DeltaBwdChunk make_chunk(int64_t begin, const StripRange& strips, float* state,
                           const DeltaStripMemory& memory) const {
    const LinearTensors& in = args_.inputs;
    const LinearTensors& gradients = args_.gradients;
    const int64_t key_head = problem_.key_head_of(head_);
    const auto own = [&](const TensorView& tensor) { return rows(tensor, head_, begin); };
    DeltaBwdChunk chunk{};
    chunk.is_low_rank = problem_.op->update == LinearUpdate::kLowRank;
    chunk.normalizes = args_.qk_l2norm;
    chunk.is_vector_gate = problem_.op->gate == LinearGate::kVectorLogDecay;
    chunk.is_first = head_ % problem_.states_a_key() == 0;
    chunk.begins_sequence = begin == 0;
    chunk.ends_sequence = begin + max_rows_ >= sequence_.length;
    chunk.scale = static_cast<float>(problem_.scale);
    chunk.rows = std::min(max_rows_, sequence_.length - begin);
    chunk.max_rows = max_rows_;
    chunk.head_dim = problem_.head_dim;
    chunk.head_dim_v = problem_.head_dim_v;
    chunk.first_strip = strips.first;
    chunk.num_strips = strips.count;
    chunk.q = rows(in.q, problem_.query_head_of(head_), begin);
    chunk.k = rows(in.k, key_head, begin);
    chunk.v = own(in.v);
    chunk.dout = own(args_.dout);
    chunk.g = own(in.g);
    chunk.beta = own(in.beta);
    chunk.a = own(in.a);
    chunk.b = own(in.b);
    chunk.state = state;
    chunk.read = memory_.read + begin * ld_v_;
    chunk.dread = memory_.dread + begin * ld_v_;
    chunk.dq = memory_.dq + begin * ld_k_;
    chunk.dkeys = memory_.dkeys + begin * ld_k_;
    chunk.dq_sum = memory_.dq_sum + begin * ld_k_;
    chunk.dk_sum = memory_.dk_sum + begin * ld_k_;
    chunk.gate_sums = memory_.gate_sums + begin * (ld_k_ / kernels_.strip_width);
    chunk.passing = memory_.passing;
    chunk.dq_rows = rows(gradients.q, problem_.query_head_of(head_), begin);
    chunk.dk_rows = rows(gradients.k, key_head, begin);
    chunk.dv_rows = own(gradients.v);
    chunk.dg_rows = own(gradients.g);
    chunk.dbeta_rows = own(gradients.beta);
    chunk.da_rows = own(gradients.a);
    chunk.db_rows = own(gradients.b);
    chunk.scratch = memory.scratch;
    return chunk;
  }

  const RecurrentKernels& kernels_;
  const LinearProblem& problem_;
  const LinearArgs& args_;
  const LinearSequence& sequence_;
  int64_t head_;
  int64_t max_rows_;
  int64_t ld_k_, ld_v_;
  const DeltaRowMemory& memory_;
};

/// How a launch goes through key heads: each by one worker, or all workers on one.
class DeltaBwdLaunch {
 public:
  DeltaBwdLaunch(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                 const LinearArgs& args, const Context& context, char* memory)
      : isa_(isa),
        problem_(problem),
        plan_(plan),
        args_(args),
        context_(context),
        memory_(memory),
        sequences_(linear_sequences(problem, args)) {}

  void run() {
    const int64_t num_keys = problem_.batch_size * problem_.num_key_heads;
    const int64_t num_workers = num_workers_of(context_);
    if (num_workers == 1 || num_keys >= 2 * num_workers) {
      parallel_for(context_, num_keys, [&](int64_t key, int worker) { run_key(key, worker); });
      return;
    }
    for (int64_t key = 0; key < num_keys; ++key) run_key_together(key, num_workers);
  }

 private:
  DeltaBwdMemory memory_of(int64_t worker) const {
    WorkspaceCursor cursor(memory_ + worker * plan_.bytes_a_worker);
    return {isa_, problem_, plan_.chunk_size, cursor};
  }

  /// Calls body(state, is_last) for each state of a key head.
  template <class Body>
  void for_each_state(int64_t key, const DeltaRowMemory& rows, const Body& body) const {
    const auto& sequence = sequences_[static_cast<size_t>(key / problem_.num_key_heads)];
    const int64_t num_states = problem_.states_a_key();
    const int64_t head = key % problem_.num_key_heads * num_states;
    for (int64_t n = 0; n < num_states; ++n) {
      DeltaBwdState state(isa_, problem_, plan_, args_, sequence, head + n, rows);
      body(state, n + 1 == num_states);
    }
  }

  void run_key(int64_t key, int64_t worker) const {
    const DeltaBwdMemory memory = memory_of(worker);
    for_each_state(key, memory.rows, [&](DeltaBwdState& state, bool is_last) {
      state.run_values(state.value_strips(), memory.strips);
      state.run_keys(state.key_strips(), memory.strips, [&](int64_t n) {
        state.finish_state(n, memory.strips);
        if (is_last) state.finish_keys(n, memory.strips);
      });
    });
  }

  /// Calls body(strips, memory) for parts of some strips.
  template <class Body>
  void for_each_part(const StripRange& strips, int64_t num_workers, const Body& body) const {
    const int64_t count = ceil_div(strips.count, num_workers);
    parallel_for(context_, ceil_div(strips.count, count), [&](int64_t part, int worker) {
      const int64_t first = strips.first + part * count;
      const int64_t end = strips.first + strips.count;
      body(StripRange{first, std::min(count, end - first)}, memory_of(worker).strips);
    });
  }

  void run_key_together(int64_t key, int64_t num_workers) const {
    const DeltaBwdMemory shared = memory_of(0);
    for_each_state(key, shared.rows, [&](DeltaBwdState& state, bool is_last) {
      for_each_part(state.value_strips(), num_workers,
                    [&](const StripRange& strips, const DeltaStripMemory& memory) {
                      state.run_values(strips, memory);
                    });
      for_each_part(state.key_strips(), num_workers,
                    [&](const StripRange& strips, const DeltaStripMemory& memory) {
                      state.run_keys(strips, memory, [](int64_t) {});
                    });
      parallel_for(context_, state.num_chunks(), [&](int64_t n, int worker) {
        const DeltaStripMemory memory = memory_of(worker).strips;
        state.finish_state(n, memory);
        if (is_last) state.finish_keys(n, memory);
      });
    });
  }

  const IsaEntry& isa_;
  const LinearProblem& problem_;
  const LinearPlan& plan_;
  const LinearArgs& args_;
  const Context& context_;
  char* memory_;
  std::vector<LinearSequence> sequences_;
};

}  // namespace

LinearPlan plan_delta_rows_bwd(const IsaEntry& isa, const LinearProblem& problem) {
  return plan_states<DeltaBwdMemory>(isa, problem);
}

void launch_delta_rows_bwd(const IsaEntry& isa, const LinearProblem& problem,
                           const LinearPlan& plan, const LinearArgs& args, const Context& context) {
  if (plan.num_tasks == 0) return;
  const std::string_view op = linear_op_name(*problem.op, problem.pass);
  const double work = static_cast<double>(problem.num_rows * problem.num_out_heads) *
                      static_cast<double>(15 * problem.head_dim * problem.head_dim_v);
  const Context limited = with_workers_for(work, context);
  const Workspace workspace(op, context, plan.bytes_for(op, num_workers_of(limited)));
  DeltaBwdLaunch(isa, problem, plan, args, limited, workspace.data()).run();
}

}  // namespace flashtile::cpu
