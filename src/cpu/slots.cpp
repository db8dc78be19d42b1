// SPDX-License-Identifier: Apache-2.0
//
// Gated slot attention on the CPU. A task is one state head of one sequence: forward over its rows,
// and in a backward then back over them. Where those are fewer than workers, all workers take one
// after the other in parts, with the same sums: a forward reads the keys' state of some rows while
// it reads the values' state of those before; a backward has all rows of what parts read kept.
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

/// Rows of a span, of which a forward in parts keeps the weights of two.
constexpr int64_t kSpanRows = 8 * kRecurrentRows;

struct SlotsFwdMemory {
  SlotsStates states;
  float* span_weights;                  ///< of a forward in parts
  float* rows;                          ///< a state by rows, on the way from and to the caller
  float* transposed;                    ///< likewise
  const VectorDecayPairKernels* pairs;  ///< null: all is done row by row
  char* scratch;                        ///< and behind it that of pairs

  SlotsFwdMemory(const IsaEntry& isa, const LinearProblem& problem, int64_t max_rows,
                 WorkspaceCursor& cursor)
      : states(isa.linear->recurrent, problem, cursor) {
    const int64_t members = slots_shape(problem, max_rows).num_members;
    span_weights = cursor.take<float>(2 * std::min(kSpanRows, problem.max_seqlen) * members *
                                      strip_columns(isa.linear->recurrent, problem.num_slots));
    const int64_t longest = strip_columns(
        isa.linear->recurrent, std::max({problem.num_slots, problem.head_dim, problem.head_dim_v}));
    rows = cursor.take<float>(longest * longest);
    transposed = cursor.take<float>(longest * longest);
    pairs = vector_decay_pairs(isa, problem);
    scratch = cursor.take<char>(isa.linear->slots.scratch_bytes(slots_shape(problem, max_rows)) +
                                pairs_scratch_bytes(problem, max_rows));
  }

 private:
  int64_t pairs_scratch_bytes(const LinearProblem& problem, int64_t max_rows) const {
    const int64_t members = slots_shape(problem, max_rows).num_members;
    int64_t bytes = 0;
    for (const int64_t dim : {problem.head_dim, problem.head_dim_v}) {
      if (pairs == nullptr) continue;
      bytes = std::max({bytes, pairs->scratch_bytes(max_rows, problem.num_slots, dim, members),
                        pairs->bwd_scratch_bytes(problem.num_slots, dim, members)});
    }
    return bytes;
  }
};

struct SlotsBwdMemory {
  SlotsFwdMemory forward;
  SlotsStates dstates;
  float* weights;  ///< of all rows of the sequence and all output heads
  float* dlogits;
  float* read_sums;
  double* passing;
  SlotsKept kept;  ///< states before some chunks
  double* begun;   ///< of those

  SlotsBwdMemory(const IsaEntry& isa, const LinearProblem& problem, int64_t max_rows,
                 WorkspaceCursor& cursor)
      : forward(isa, problem, max_rows, cursor), dstates(isa.linear->recurrent, problem, cursor) {
    const int64_t slots = strip_columns(isa.linear->recurrent, problem.num_slots);
    const int64_t members = slots_shape(problem, max_rows).num_members;
    weights = cursor.take<float>(problem.max_seqlen * members * slots);
    dlogits = cursor.take<float>(problem.max_seqlen * members * slots);
    read_sums = cursor.take<float>(problem.max_seqlen * slots);
    passing = cursor.take<double>(problem.num_slots);
    const int64_t num_kept = forward.pairs == nullptr ? 0 : num_kept_states(problem.max_seqlen);
    const auto take_kept = [&](int64_t dim) {
      return cursor.take<uint16_t>(num_kept * kept_elements(problem, dim));
    };
    kept = {take_kept(problem.head_dim), take_kept(problem.head_dim_v)};
    begun = cursor.take<double>(num_kept * 2 * problem.num_slots);
  }

  int64_t kept_elements(const LinearProblem& problem, int64_t dim) const {
    return forward.pairs == nullptr ? 0 : forward.pairs->kept_elements(problem.num_slots, dim);
  }
  /// The states before a row.
  SlotsKept kept_before(const LinearProblem& problem, int64_t row) const {
    const int64_t n = kept_state_before(row);
    if (forward.pairs == nullptr || n < 0) return {nullptr, nullptr};
    return {kept.keys + n * kept_elements(problem, problem.head_dim),
            kept.values + n * kept_elements(problem, problem.head_dim_v)};
  }
};

/// One state head of one sequence.
class SlotsStream {
 public:
  SlotsStream(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
              const LinearArgs& args, const LinearSequence& sequence, int64_t head,
              const SlotsFwdMemory& memory, char* scratch)
      : kernels_(isa.linear->recurrent),
        slots_(isa.linear->slots),
        problem_(problem),
        args_(args),
        sequence_(sequence),
        head_(head),
        max_rows_(plan.chunk_size),
        memory_(memory),
        scratch_(scratch) {}

  void begin_forward() const { load(args_.initial_states, memory_.states, /*has_all=*/false); }
  /// All rows.
  void run_forward() {
    for (int64_t n = 0; n < num_chunks(); ++n) slots_.fwd_chunk(make_chunk(n, memory_.states));
  }
  int64_t num_spans() const { return ceil_div(sequence_.length, kSpanRows); }
  void run_forward_part(int64_t span, SlotsPart part) {
    const int64_t span_chunks = kSpanRows / max_rows_;
    const int64_t end = std::min((span + 1) * span_chunks, num_chunks());
    for (int64_t n = span * span_chunks; n < end; ++n) {
      SlotsChunk chunk = make_chunk(n, memory_.states);
      chunk.part = part;
      const int64_t row = n * max_rows_ % (2 * kSpanRows);
      chunk.weights = memory_.span_weights + row * chunk.num_members * slot_columns();
      slots_.fwd_chunk(chunk);
    }
  }
  void end_forward() { store(args_.final_states, memory_.states); }

  void begin_backward(const SlotsBwdMemory& memory) const {
    load(args_.initial_states, memory_.states, /*has_all=*/true);
    load(args_.dfinal_states, memory.dstates, /*has_all=*/true);
  }
  /// With `kept`, the memory of another worker, one part; what it leaves to others is there.
  void run_queries(const SlotsBwdMemory& memory, SlotsPart part, const SlotsBwdMemory* kept) {
    for (int64_t n = 0; n < num_chunks(); ++n) {
      slots_.bwd_queries(make_bwd_chunk(n, memory_.states, memory, part, kept));
    }
  }
  void run_state_dots(const SlotsBwdMemory& memory) {
    slots_.state_dots(make_bwd_chunk(0, memory_.states, memory, SlotsPart::kAll, nullptr),
                      make_bwd_chunk(0, memory.dstates, memory, SlotsPart::kAll, nullptr));
  }
  void run_keys(const SlotsBwdMemory& memory, SlotsPart part, const SlotsBwdMemory* kept) {
    for (int64_t n = num_chunks() - 1; n >= 0; --n) {
      SlotsChunk chunk = make_bwd_chunk(n, memory.dstates, memory, part, kept);
      chunk.next_begin = n > 0 ? -max_rows_ : 0;
      chunk.next_end = 0;
      slots_.bwd_keys(chunk);
    }
  }
  void end_backward(const SlotsBwdMemory& memory) { store(args_.dinitial_states, memory.dstates); }

 private:
  int64_t num_chunks() const { return ceil_div(sequence_.length, max_rows_); }
  int64_t slot_columns() const { return strip_columns(kernels_, problem_.num_slots); }

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
                               KeptList<ChunkRows>& list) const {
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
    chunk.next_begin = chunk.rows;
    chunk.next_end = std::min(chunk.rows + max_rows_, sequence_.length - begin);
    chunk.pairs = memory_.pairs;
    chunk.scratch = scratch_;
    chunk.pairs_scratch = scratch_ + slots_.scratch_bytes(chunk);
    return chunk;
  }

  SlotsChunk make_bwd_chunk(int64_t n, const SlotsStates& states, const SlotsBwdMemory& memory,
                            SlotsPart part, const SlotsBwdMemory* kept) {
    const LinearTensors& gradients = args_.gradients;
    const int64_t begin = n * max_rows_;
    const int64_t slots = slot_columns();
    SlotsChunk chunk = make_chunk(n, states);
    chunk.part = part;
    if (kept != nullptr) {
      // The rows of slots come when those of queries are no longer wanted.
      chunk.decayed_logits = kept->weights + begin * chunk.num_members * slots;
      chunk.decayed_dp = kept->dlogits + begin * chunk.num_members * slots;
      chunk.key_slots = kept->weights + begin * slots;
      chunk.value_slots = kept->dlogits + begin * slots;
    }
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
    chunk.kept_before = memory.kept_before(problem_, begin);
    const int64_t end = begin + max_rows_;
    if (!chunk.ends_sequence) chunk.kept_behind = memory.kept_before(problem_, end);
    chunk.begun =
        memory.begun + std::max<int64_t>(kept_state_before(end), 0) * 2 * problem_.num_slots;
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
  char* scratch_;
  KeptList<ChunkRows> q_, out_, dout_, dq_;
};

/// A launch: its streams by number, and what workers have.
template <class Memory>
class SlotsLaunch {
 public:
  SlotsLaunch(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
              const LinearArgs& args, const Context& context, int64_t passes)
      : isa_(isa),
        problem_(problem),
        plan_(plan),
        args_(args),
        sequences_(linear_sequences(problem, args)),
        context_(with_workers_for(work(problem, passes), context)),
        workspace_(
            linear_op_name(*problem.op, problem.pass), context,
            plan.bytes_for(linear_op_name(*problem.op, problem.pass), num_workers_of(context_))) {
    for (int64_t worker = 0; worker < num_workers_of(context_); ++worker) {
      WorkspaceCursor cursor(workspace_.data() + worker * plan.bytes_a_worker);
      memories_.emplace_back(isa, problem, plan.chunk_size, cursor);
    }
  }

  /// Calls whole(memory of its worker, stream) for each stream, in parallel; where these are fewer
  /// than workers, in_parts(number) for one after the other.
  template <class Whole, class InParts>
  void run(const Whole& whole, const InParts& in_parts) {
    if (plan_.num_tasks < num_workers_of(context_)) {
      for (int64_t task = 0; task < plan_.num_tasks; ++task) in_parts(task);
      return;
    }
    parallel_for(context_, plan_.num_tasks, [&](int64_t task, int worker) {
      const Memory& memory = memories_[static_cast<size_t>(worker)];
      SlotsStream stream = stream_of(task, forward_of(memory), worker);
      whole(memory, stream);
    });
  }

  /// Calls body(part, stream) for parts [0, count) of a stream, in parallel. Its states are those
  /// of the first worker.
  template <class Body>
  void for_parts(int64_t task, int64_t count, const Body& body) {
    parallel_for(context_, count, [&](int64_t part, int worker) {
      SlotsStream stream = stream_of(task, forward_of(memories_[0]), worker);
      body(part, stream);
    });
  }

  const Memory& memory(size_t worker) const { return memories_[worker]; }

 private:
  static const SlotsFwdMemory& forward_of(const SlotsFwdMemory& memory) { return memory; }
  static const SlotsFwdMemory& forward_of(const SlotsBwdMemory& memory) { return memory.forward; }

  static double work(const LinearProblem& problem, int64_t passes) {
    return static_cast<double>(problem.num_rows * problem.num_out_heads) *
           static_cast<double>(passes * problem.num_slots *
                               (problem.head_dim + problem.head_dim_v));
  }

  SlotsStream stream_of(int64_t task, const SlotsFwdMemory& memory, int worker) const {
    char* const scratch = forward_of(memories_[static_cast<size_t>(worker)]).scratch;
    const auto& sequence = sequences_[static_cast<size_t>(task / problem_.num_state_heads)];
    return SlotsStream(isa_, problem_, plan_, args_, sequence, task % problem_.num_state_heads,
                       memory, scratch);
  }

  const IsaEntry& isa_;
  const LinearProblem& problem_;
  const LinearPlan& plan_;
  const LinearArgs& args_;
  KeptList<LinearSequence> sequences_;
  Context context_;
  Workspace workspace_;
  KeptList<Memory> memories_;
};

}  // namespace

LinearPlan plan_slots_fwd(const IsaEntry& isa, const LinearProblem& problem) {
  return plan_states<SlotsFwdMemory>(isa, problem);
}

void launch_slots_fwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                      const LinearArgs& args, const Context& context) {
  if (plan.num_tasks == 0) return;
  SlotsLaunch<SlotsFwdMemory> launch(isa, problem, plan, args, context, 3);
  launch.run(
      [](const SlotsFwdMemory&, SlotsStream& stream) {
        stream.begin_forward();
        stream.run_forward();
        stream.end_forward();
      },
      [&](int64_t task) {
        int64_t num_spans = 0;
        launch.for_parts(task, 1, [&](int64_t, SlotsStream& stream) {
          stream.begin_forward();
          num_spans = stream.num_spans();
        });
        // The values of a span beside the logits of the one behind it.
        for (int64_t span = 0; span <= num_spans; ++span) {
          launch.for_parts(task, 2, [&](int64_t part, SlotsStream& stream) {
            if (part == 0 && span < num_spans) stream.run_forward_part(span, SlotsPart::kLogits);
            if (part == 1 && span > 0) stream.run_forward_part(span - 1, SlotsPart::kValues);
          });
        }
        launch.for_parts(task, 1, [](int64_t, SlotsStream& stream) { stream.end_forward(); });
      });
}

LinearPlan plan_slots_bwd(const IsaEntry& isa, const LinearProblem& problem) {
  return plan_states<SlotsBwdMemory>(isa, problem);
}

void launch_slots_bwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                      const LinearArgs& args, const Context& context) {
  if (plan.num_tasks == 0) return;
  SlotsLaunch<SlotsBwdMemory> launch(isa, problem, plan, args, context, 10);
  launch.run(
      [](const SlotsBwdMemory& memory, SlotsStream& stream) {
        stream.begin_backward(memory);
        stream.run_queries(memory, SlotsPart::kAll, nullptr);
        stream.run_state_dots(memory);
        stream.run_keys(memory, SlotsPart::kAll, nullptr);
        stream.end_backward(memory);
      },
      [&](int64_t task) {
        const SlotsBwdMemory& memory = launch.memory(0);
        const SlotsBwdMemory* kept = &launch.memory(1);
        launch.for_parts(task, 1,
                         [&](int64_t, SlotsStream& stream) { stream.begin_backward(memory); });
        launch.for_parts(task, 2, [&](int64_t part, SlotsStream& stream) {
          stream.run_queries(memory, part == 0 ? SlotsPart::kLogits : SlotsPart::kDp, kept);
        });
        launch.for_parts(task, 1, [&](int64_t, SlotsStream& stream) {
          stream.run_queries(memory, SlotsPart::kQueries, kept);
          stream.run_state_dots(memory);
        });
        constexpr SlotsPart kParts[] = {SlotsPart::kKeySlots, SlotsPart::kValueSlots,
                                        SlotsPart::kKeys, SlotsPart::kValues};
        launch.for_parts(task, 4, [&](int64_t part, SlotsStream& stream) {
          stream.run_keys(memory, kParts[part], kept);
        });
        launch.for_parts(task, 1, [&](int64_t, SlotsStream& stream) {
          stream.run_keys(memory, SlotsPart::kGates, kept);
          stream.end_backward(memory);
        });
      });
}

}  // namespace flashtile::cpu
