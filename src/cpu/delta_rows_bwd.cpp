// SPDX-License-Identifier: Apache-2.0
//
// Backward of the delta family on the CPU, row by row. A task is a key head of one sequence with
// all states that read it: rows forward through all chunks, then a chunk at a time back. Where key
// heads are fewer than workers, parts of a state's value dimensions and then parts of its key
// dimensions are tasks, some chunks at a time. What a strip gives does not depend on that.
#include <algorithm>

#include "core/executor.hpp"
#include "cpu/recurrent_call.hpp"

namespace flashtile::cpu {
namespace {

/// Chunks that workers on one state go through together.
constexpr int64_t kSpanChunks = 8;

int64_t span_rows(const LinearProblem& problem, int64_t max_rows) {
  return std::min(problem.max_seqlen, kSpanChunks * max_rows);
}

/// What is kept of one state, and of the sums over those that share its key head.
struct DeltaStateMemory {
  float* read;    ///< of all rows
  float* states;  ///< key strips before each chunk and behind the last
  float* values;  ///< value strips of the state, then of its gradient
  float* dstate;  ///< key strips
  double* passing;
  float* dq_sum;  ///< of all rows where states share them, else of a span
  float* dk_sum;
  float* dread;     ///< of a span and the row behind
  float* dk_parts;  ///< of a span, from each strip of value dimensions
  float* db_parts;
  float* dq;  ///< of a span
  float* dkeys;
  double* gate_sums;

  DeltaStateMemory(const IsaEntry& isa, const LinearProblem& problem, int64_t max_rows,
                   WorkspaceCursor& cursor) {
    const RecurrentKernels& kernels = isa.linear->recurrent;
    const int64_t rows = problem.max_seqlen;
    const int64_t span = span_rows(problem, max_rows);
    const int64_t ld_k = strip_columns(kernels, problem.head_dim);
    const int64_t ld_v = strip_columns(kernels, problem.head_dim_v);
    const int64_t by_keys = problem.head_dim_v * ld_k;
    read = cursor.take<float>(rows * ld_v);
    states = cursor.take<float>((ceil_div(rows, max_rows) + 1) * by_keys);
    values = cursor.take<float>(problem.head_dim * ld_v);
    dstate = cursor.take<float>(by_keys);
    passing = cursor.take<double>(ld_k);
    dread = cursor.take<float>((span + 1) * ld_v);
    const int64_t num_parts = ld_v / kernels.strip_width;
    const bool is_low_rank = problem.op->update == LinearUpdate::kLowRank;
    dk_parts = cursor.take<float>(num_parts * span * ld_k);
    db_parts = is_low_rank ? cursor.take<float>(num_parts * span * ld_k) : dk_parts;
    dq = cursor.take<float>(span * ld_k);
    dkeys = cursor.take<float>(span * ld_k);
    const bool is_shared = problem.states_a_key() > 1;
    dq_sum = is_shared ? cursor.take<float>(rows * ld_k) : dq;
    dk_sum = is_shared ? cursor.take<float>(rows * ld_k) : dkeys;
    gate_sums = cursor.take<double>(span * (ld_k / kernels.strip_width));
  }
};

/// What a worker needs for a chunk of any state.
struct DeltaScratch {
  float* rows;  ///< a state by rows, on the way from and to the caller
  float* transposed_rows;
  char* chunk;

  DeltaScratch(const IsaEntry& isa, const LinearProblem& problem, int64_t max_rows,
               WorkspaceCursor& cursor) {
    const RecurrentKernels& kernels = isa.linear->recurrent;
    rows = cursor.take<float>(problem.head_dim * strip_columns(kernels, problem.head_dim_v));
    transposed_rows =
        cursor.take<float>(problem.head_dim_v * strip_columns(kernels, problem.head_dim));
    chunk = cursor.take<char>(
        kernels.delta_bwd.scratch_bytes(max_rows, problem.head_dim, problem.head_dim_v));
  }
};

/// What one worker needs for the states of a task.
struct DeltaBwdMemory {
  DeltaScratch scratch;
  DeltaStateMemory state;

  DeltaBwdMemory(const IsaEntry& isa, const LinearProblem& problem, int64_t max_rows,
                 WorkspaceCursor& cursor)
      : scratch(isa, problem, max_rows, cursor), state(isa, problem, max_rows, cursor) {}
};

/// One state of one sequence.
class DeltaBwdState : public StripedState {
 public:
  DeltaBwdState(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                const LinearArgs& args, const LinearSequence& sequence, int64_t head,
                const DeltaStateMemory& memory)
      : StripedState(isa, problem, plan, args, sequence, head), memory_(memory) {}

  void begin_values(const StripRange& strips, const DeltaScratch& scratch) const {
    load_value_strips(args_.initial_states.state, strips, scratch.rows, values_at(strips));
  }
  void turn_values_back(const StripRange& strips, const DeltaScratch& scratch) const {
    load_value_strips(args_.dfinal_states.state, strips, scratch.rows, values_at(strips));
  }
  void end_values(const StripRange& strips, const DeltaScratch& scratch) const {
    store_value_strips(args_.dinitial_states.state, strips, scratch.rows, values_at(strips));
  }

  /// After all chunks forward.
  void turn_keys_back(const StripRange& strips, const DeltaScratch& scratch) const {
    load_keys(args_.initial_states.state, strips, scratch, state_before(0));
    load_keys(args_.dfinal_states.state, strips, scratch, memory_.dstate);
    DeltaBwdChunk chunk = make_chunk(0, 0, strips, scratch);
    chunk.state = state_before(num_chunks());
    kernels_.delta_bwd.state_dots(chunk);
  }

  /// Before chunks [begin, end) back: what they need of the row behind them.
  void begin_span(int64_t begin, int64_t end) const {
    if (end == num_chunks()) return;
    std::copy_n(memory_.dread, ld_v_, memory_.dread + (end - begin) * max_rows_ * ld_v_);
  }

  /// Chunk n of what is left, once all strips are done.
  void finish_chunk(int64_t n, int64_t span_chunk, const DeltaScratch& scratch) const {
    const DeltaBwdChunk chunk = make_chunk(n, span_chunk, {0, 0}, scratch);
    kernels_.delta_bwd.finish_state(chunk);
    // The last state that shares the key head has all sums.
    if ((head_ + 1) % problem_.states_a_key() == 0) kernels_.delta_bwd.finish_keys(chunk);
  }

  void values_forward(DeltaBwdChunk& chunk) const {
    chunk.state = memory_.values;
    kernels_.delta_bwd.values_forward(chunk);
  }
  void values_backward(DeltaBwdChunk& chunk) const {
    chunk.state = memory_.values;
    kernels_.delta_bwd.values_backward(chunk);
  }
  /// `is_packed`: right after values_backward of the same chunk, with the same scratch.
  void keys_backward(int64_t n, DeltaBwdChunk& chunk, bool is_packed) const {
    chunk.state = state_before(n);
    chunk.is_packed = is_packed;
    kernels_.delta_bwd.keys_backward(chunk);
  }

  /// Chunk n, of a span chunk `span_chunk`, as a pass over some strips takes it, but for the state.
  DeltaBwdChunk make_chunk(int64_t n, int64_t span_chunk, const StripRange& strips,
                           const DeltaScratch& scratch) const {
    const int64_t begin = n * max_rows_;
    const int64_t row = span_chunk * max_rows_;
    const bool is_shared = problem_.states_a_key() > 1;
    const int64_t sum_row = is_shared ? begin : row;
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
    chunk.state_behind = state_before(n + 1);
    chunk.dstate = memory_.dstate;
    chunk.read = memory_.read + begin * ld_v_;
    chunk.dread = memory_.dread + row * ld_v_;
    chunk.dk_parts = memory_.dk_parts + row * ld_k_;
    chunk.db_parts = memory_.db_parts + row * ld_k_;
    chunk.part_stride = span_rows(problem_, max_rows_) * ld_k_;
    chunk.dq = memory_.dq + row * ld_k_;
    chunk.dkeys = memory_.dkeys + row * ld_k_;
    chunk.dq_sum = memory_.dq_sum + sum_row * ld_k_;
    chunk.dk_sum = memory_.dk_sum + sum_row * ld_k_;
    chunk.gate_sums = memory_.gate_sums + row * (ld_k_ / kernels_.strip_width);
    chunk.passing = memory_.passing;
    chunk.dq_rows = rows(gradients.q, problem_.query_head_of(head_), begin);
    chunk.dk_rows = rows(gradients.k, key_head, begin);
    chunk.dv_rows = own(gradients.v);
    chunk.dg_rows = own(gradients.g);
    chunk.dbeta_rows = own(gradients.beta);
    chunk.da_rows = own(gradients.a);
    chunk.db_rows = own(gradients.b);
    chunk.scratch = scratch.chunk;
    return chunk;
  }

 private:
  float* values_at(const StripRange& strips) const {
    return memory_.values + strips.first * kernels_.strip_width * problem_.head_dim;
  }
  void load_keys(const TensorView& tensor, const StripRange& strips, const DeltaScratch& scratch,
                 float* to) const {
    load_key_strips(tensor, strips, scratch.rows, scratch.transposed_rows,
                    to + strips.first * kernels_.strip_width * problem_.head_dim_v);
  }

  /// Key strips of the state before chunk n, but for the sequence's first state without what the
  /// row before it adds.
  float* state_before(int64_t n) const { return memory_.states + n * problem_.head_dim_v * ld_k_; }

  const DeltaStateMemory& memory_;
};

/// Chunks [begin, end) of some strips.
struct DeltaSpan {
  int64_t begin, end;
  bool is_back;
  bool is_kept;  ///< else each chunk has the place of the first in what is kept of a span
  StripRange strips;
};

/// Calls visit(n, chunk) for the chunks of a span of a state, each told which one follows.
template <class Visit>
void for_each_chunk(const DeltaBwdState& state, const DeltaSpan& span, const DeltaScratch& scratch,
                    const Visit& visit) {
  const int64_t step = span.is_back ? -1 : 1;
  const auto chunk_at = [&](int64_t n) {
    return state.make_chunk(n, span.is_kept ? n - span.begin : 0, span.strips, scratch);
  };
  const auto is_in_span = [&](int64_t n) { return n >= span.begin && n < span.end; };
  for (int64_t n = span.is_back ? span.end - 1 : span.begin; is_in_span(n); n += step) {
    DeltaBwdChunk chunk = chunk_at(n);
    DeltaBwdChunk next{};
    if (is_in_span(n + step)) {
      next = chunk_at(n + step);
      chunk.next = &next;
    }
    visit(n, chunk);
  }
}

/// What the corrections of all rows read, and states before chunks.
void run_forward(const DeltaBwdState& state, const StripRange& strips,
                 const DeltaScratch& scratch) {
  state.begin_values(strips, scratch);
  const DeltaSpan span{0, state.num_chunks(), /*is_back=*/false, /*is_kept=*/false, strips};
  for_each_chunk(state, span, scratch,
                 [&](int64_t, DeltaBwdChunk& chunk) { state.values_forward(chunk); });
  state.turn_values_back(strips, scratch);
}

/// All of a state by one worker.
void run_state(const DeltaBwdState& state, const DeltaScratch& scratch) {
  const StripRange values = state.value_strips();
  const StripRange keys = state.key_strips();
  run_forward(state, values, scratch);
  state.turn_keys_back(keys, scratch);
  const DeltaSpan span{0, state.num_chunks(), /*is_back=*/true, /*is_kept=*/false, values};
  for_each_chunk(state, span, scratch, [&](int64_t n, DeltaBwdChunk& chunk) {
    state.begin_span(n, n + 1);
    state.values_backward(chunk);
    chunk.num_strips = keys.count;
    state.keys_backward(n, chunk, /*is_packed=*/true);
    state.finish_chunk(n, 0, scratch);
  });
  state.end_values(values, scratch);
}

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
      parallel_for(context_, num_keys, [&](int64_t key, int worker) {
        const DeltaBwdMemory memory = memory_of(worker);
        for_each_state(key, memory,
                       [&](const DeltaBwdState& state) { run_state(state, memory.scratch); });
      });
      return;
    }
    for (int64_t key = 0; key < num_keys; ++key) {
      for_each_state(key, memory_of(0), [&](const DeltaBwdState& state) { run_together(state); });
    }
  }

 private:
  DeltaBwdMemory memory_of(int64_t worker) const {
    WorkspaceCursor cursor(memory_ + worker * plan_.bytes_a_worker);
    return {isa_, problem_, plan_.chunk_size, cursor};
  }

  /// Calls body(state) for the states that read a key head of a sequence, one after the other.
  template <class Body>
  void for_each_state(int64_t key, const DeltaBwdMemory& memory, const Body& body) const {
    const LinearSequence& sequence = sequences_[static_cast<size_t>(key / problem_.num_key_heads)];
    const int64_t num_states = problem_.states_a_key();
    const int64_t first = key % problem_.num_key_heads * num_states;
    for (int64_t head = first; head < first + num_states; ++head) {
      body(DeltaBwdState(isa_, problem_, plan_, args_, sequence, head, memory.state));
    }
  }

  /// Calls body(strips, scratch) for parts of some strips of a state.
  template <class Body>
  void for_each_part(const StripRange& strips, const Body& body) const {
    const int64_t count = ceil_div(strips.count, num_workers_of(context_));
    parallel_for(context_, ceil_div(strips.count, count), [&](int64_t part, int worker) {
      const int64_t first = part * count;
      body(StripRange{first, std::min(count, strips.count - first)}, memory_of(worker).scratch);
    });
  }

  /// One state by all workers.
  void run_together(const DeltaBwdState& state) const {
    for_each_part(state.value_strips(), [&](const StripRange& strips, const DeltaScratch& scratch) {
      run_forward(state, strips, scratch);
    });
    for_each_part(state.key_strips(), [&](const StripRange& strips, const DeltaScratch& scratch) {
      state.turn_keys_back(strips, scratch);
    });
    for (int64_t end = state.num_chunks(); end > 0; end -= kSpanChunks) {
      run_span_together(state, std::max<int64_t>(0, end - kSpanChunks), end);
    }
    for_each_part(state.value_strips(), [&](const StripRange& strips, const DeltaScratch& scratch) {
      state.end_values(strips, scratch);
    });
  }

  /// Chunks [begin, end) back.
  void run_span_together(const DeltaBwdState& state, int64_t begin, int64_t end) const {
    state.begin_span(begin, end);
    const auto span_of = [&](const StripRange& strips) {
      return DeltaSpan{begin, end, /*is_back=*/true, /*is_kept=*/true, strips};
    };
    for_each_part(state.value_strips(), [&](const StripRange& strips, const DeltaScratch& scratch) {
      for_each_chunk(state, span_of(strips), scratch,
                     [&](int64_t, DeltaBwdChunk& chunk) { state.values_backward(chunk); });
    });
    for_each_part(state.key_strips(), [&](const StripRange& strips, const DeltaScratch& scratch) {
      for_each_chunk(state, span_of(strips), scratch, [&](int64_t n, DeltaBwdChunk& chunk) {
        state.keys_backward(n, chunk, /*is_packed=*/false);
      });
    });
    parallel_for(context_, end - begin, [&](int64_t n, int worker) {
      state.finish_chunk(begin + n, n, memory_of(worker).scratch);
    });
  }

  const IsaEntry& isa_;
  const LinearProblem& problem_;
  const LinearPlan& plan_;
  const LinearArgs& args_;
  const Context& context_;
  char* memory_;
  KeptList<LinearSequence> sequences_;
};

}  // namespace

LinearPlan plan_delta_rows_bwd(const IsaEntry& isa, const LinearProblem& problem) {
  return plan_states<DeltaBwdMemory>(isa, problem, chunk_rows_of(problem));
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
