// SPDX-License-Identifier: Apache-2.0
//
// Backward of scalar decay on the CPU. A task is some key heads of one sequence with all states
// that read them, from the last chunk to the first: a chunk of each in turn, as their rows lie side
// by side. States inside of the sequence are worked out again: one is kept for each span, and
// within a span one for each chunk.
//
// Where such tasks are fewer than workers, all workers take one after the other by two levels: in a
// span first the states before its chunks and the gradients of those behind them, side by side and
// in parts, then its chunks in any order. With a divisor the gradients follow the states, and what
// outputs are divided by, chunks in any order, is between. The sums are the same, and so are the
// bits.
#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <span>

#include "core/executor.hpp"
#include "core/workspace.hpp"
#include "cpu/scalar_decay_call.hpp"
#include "ops/linear/parameter_sums.hpp"

namespace flashtile::cpu {
namespace {

/// The states of a span's chunks that two workers keep: all of a sequence up to here. They have
/// less than the 32 MiB from which on malloc gives memory back, and gets it page by page.
constexpr int64_t kSpanBytes = int64_t{24} << 20;

/// Sizes of what a task needs.
struct BwdSizes {
  ScalarDecayShape shape;
  int64_t ld_k, ld_v;
  int64_t state_floats;  ///< of the transposed state
  int64_t dstate_floats;
  int64_t num_keys;  ///< key heads of a task
  int64_t num_states;
  int64_t span_chunks;  ///< chunks of a span
  int64_t num_spans;    ///< of the longest sequence

  BwdSizes(const IsaEntry& isa, const LinearProblem& problem, int64_t max_rows, int64_t num_workers,
           int64_t keys_a_task)
      : shape(scalar_decay_shape(problem, max_rows)),
        ld_k(isa.linear->scalar_decay.dk_ld(shape)),
        ld_v(isa.linear->scalar_decay.state_ld(shape)),
        num_keys(keys_a_task),
        num_states(num_keys * problem.states_a_key()) {
    const int64_t columns = shape.head_dim_v + (shape.divisor == ChunkDivisor::kNone ? 0 : 1);
    state_floats = columns * ld_k;
    dstate_floats = shape.head_dim * ld_v;
    const int64_t num_chunks = std::max<int64_t>(1, ceil_div(problem.max_seqlen, max_rows));
    const int64_t chunk_bytes = std::max<int64_t>(1, num_states * state_floats * 4);
    const int64_t span_bytes = num_workers == 1 ? kSpanBytes : kSpanBytes / 2;
    span_chunks = std::clamp<int64_t>(span_bytes / chunk_bytes, 1, num_chunks);
    num_spans = ceil_div(num_chunks, span_chunks);
  }
  bool has_divisor() const { return shape.divisor != ChunkDivisor::kNone; }
  int64_t span_rows() const { return span_chunks * shape.max_rows; }
};

struct BwdMemory {
  float* span_states;  ///< before each span, of each state
  /// Before each chunk of a span, of each state; by two levels the second worker's are gradients of
  /// those behind each chunk.
  float* chunk_states;
  float* row_state;  ///< before a row, where rows are taken one by one
  float* row_dstate;
  float* dstate;  ///< of each state
  float* dq;
  float* dk;
  RowDivisor* divisors;  ///< by two levels, of each state, row of a span and output head
  char* scratch;

  BwdMemory(const IsaEntry& isa, const LinearProblem& problem, const BwdSizes& sizes,
            WorkspaceCursor& cursor) {
    const auto& operands = scalar_decay_operands(isa, problem);
    span_states = cursor.take<float>(sizes.num_states * sizes.num_spans * sizes.state_floats);
    chunk_states = cursor.take<float>(sizes.num_states * sizes.span_chunks *
                                      std::max(sizes.state_floats, sizes.dstate_floats));
    row_state = cursor.take<float>(sizes.state_floats);
    row_dstate = cursor.take<float>(sizes.dstate_floats);
    dstate = cursor.take<float>(sizes.num_states * sizes.dstate_floats);
    dq = cursor.take<float>(sizes.shape.max_rows * sizes.ld_k);
    dk = cursor.take<float>(sizes.shape.max_rows * sizes.ld_k);
    divisors = cursor.take<RowDivisor>(
        sizes.has_divisor() ? sizes.num_states * sizes.span_rows() * problem.heads_a_state() : 0);
    scratch = cursor.take<char>(operands.bwd_scratch_bytes(sizes.shape));
  }
};

/// What is known of one state of a task.
struct BwdHead {
  int64_t head;
  bool is_first = false;  ///< of those that share a key head
  bool is_last = false;
  ScalarGates gates;
  KeptList<float> skip;
  KeptList<double> dlog_decay, dweight;
  KeptList<double> dskip;  ///< of each chunk and value dimension
  /// Of each chunk: 0 where bwd_divisors found that it has to be taken row by row.
  KeptList<uint8_t> is_whole;
  bool has_initial = false;
  bool has_dfinal = false;
};

/// Rows of each output head that reads a state.
struct BwdAddresses {
  KeptList<ChunkRows> q, dout, dq;
};

/// What a worker changes while it works on a stream.
struct BwdWork {
  const BwdMemory& memory;
  ChunkGateRows gate_rows;
  std::array<BwdAddresses, 2> turns;  ///< of a chunk and the one that follows
  size_t turn = 0;
  BwdAddresses row;

  BwdWork(const BwdMemory& of_worker, const BwdSizes& sizes)
      : memory(of_worker), gate_rows(sizes.shape.max_rows) {}
};

/// Neighbouring key heads of one sequence.
class BwdStream {
 public:
  /// With the memory of one worker, or of all of them.
  BwdStream(const IsaEntry& isa, const LinearProblem& problem, const BwdSizes& sizes,
            const LinearArgs& args, const LinearSequence& sequence, int64_t first_key,
            std::span<const BwdMemory> memories)
      : problem_(problem),
        sizes_(sizes),
        args_(args),
        sequence_(sequence),
        memories_(memories),
        memory_(memories[0]),
        operands_(scalar_decay_operands(isa, problem)),
        num_chunks_(ceil_div(sequence.length, sizes.shape.max_rows)) {
    const int64_t states = problem.states_a_key();
    const int64_t num_keys = std::min(sizes.num_keys, problem.num_key_heads - first_key);
    for (int64_t i = 0; i < num_keys * states; ++i) {
      add_head(first_key * states + i);
      heads_.back().is_first = i % states == 0;
      heads_.back().is_last = (i + 1) % states == 0;
    }
  }

  /// On the thread that calls.
  void run(ParameterSums& sums) {
    load_initial_states();
    BwdWork work(memory_, sizes_);
    save_spans(all_heads(), all_values(), work);
    load_dstates();
    for (int64_t span = num_spans() - 1; span >= 0; --span) run_span(span, work);
    store_results(sums);
  }

  /// By two levels, on the context's workers.
  void run_by_levels(const Context& context, ParameterSums& sums) {
    load_initial_states();
    if (num_spans() > 1) run_parts(context, {Recurrence::kSavedStates}, 0);
    load_dstates();
    for (int64_t span = num_spans() - 1; span >= 0; --span) run_span_by_levels(span, context);
    store_results(sums);
  }

 private:
  void store_results(ParameterSums& sums) const {
    const bool has_norm = sizes_.has_divisor();
    for (size_t i = 0; i < heads_.size(); ++i) {
      const BwdHead& each = heads_[i];
      store_state_rows(problem_, args_.dinitial_states, sequence_.batch_idx, each.head, has_norm,
                       sizes_.ld_v, dstate(i));
      store_gate_gradients(problem_, args_, sequence_, each.head, each.gates, each.dlog_decay,
                           each.dweight, sums);
      for (size_t n = 0; n < each.dskip.size(); ++n) {
        sums.add(args_.gradients.D, sequence_.batch_idx, each.head,
                 static_cast<int64_t>(n % each.skip.size()), each.dskip[n]);
      }
    }
  }

  void add_head(int64_t head) {
    BwdHead added;
    added.head = head;
    added.gates = scalar_gates(problem_, args_, sequence_, head);
    added.dlog_decay.assign(static_cast<size_t>(sequence_.length), 0.0);
    added.dweight.assign(static_cast<size_t>(sequence_.length), 0.0);
    for (int64_t j = 0; args_.inputs.D && j < problem_.head_dim_v; ++j) {
      added.skip.push_back(static_cast<float>(load_parameter(args_.inputs.D, head, j)));
    }
    added.dskip.assign(static_cast<size_t>(num_chunks_) * added.skip.size(), 0.0);
    added.is_whole.assign(static_cast<size_t>(num_chunks_), 1);
    heads_.push_back(std::move(added));
  }

  HeadRows rows(const TensorView& tensor, int64_t head) const {
    return timed_rows(problem_, tensor, sequence_, head);
  }
  float* dstate(size_t i) const {
    return memory_.dstate + static_cast<int64_t>(i) * sizes_.dstate_floats;
  }
  float* span_state(size_t i, int64_t span) const {
    return memory_.span_states +
           (static_cast<int64_t>(i) * sizes_.num_spans + span) * sizes_.state_floats;
  }
  float* chunk_state(size_t i, int64_t chunk) const {
    return memory_.chunk_states +
           (static_cast<int64_t>(i) * sizes_.span_chunks + chunk % sizes_.span_chunks) *
               sizes_.state_floats;
  }
  /// Behind a chunk, by two levels.
  float* chunk_dstate(size_t i, int64_t chunk) const {
    return memories_[1].chunk_states +
           (static_cast<int64_t>(i) * sizes_.span_chunks + chunk % sizes_.span_chunks) *
               sizes_.dstate_floats;
  }
  /// Of the rows of a chunk and the output heads that read a state, by two levels.
  RowDivisor* chunk_divisors(size_t i, int64_t chunk) const {
    return memory_.divisors + (static_cast<int64_t>(i) * sizes_.span_rows() +
                               chunk_begin(chunk % sizes_.span_chunks)) *
                                  problem_.heads_a_state();
  }

  ColumnRange all_values() const { return value_part(1, 0); }
  ColumnRange all_keys() const { return {0, problem_.head_dim}; }
  /// Of the values of a state; the sum of keys stands behind the last ones.
  ColumnRange value_part(int64_t num_parts, int64_t part) const {
    ColumnRange values = column_part(problem_.head_dim_v, num_parts, part);
    const bool is_last = values.count > 0 && values.first + values.count == problem_.head_dim_v;
    if (sizes_.has_divisor() && is_last) ++values.count;
    return values;
  }
  /// Of the keys. The delta rule's gradients take all of them to go back.
  ColumnRange key_part(int64_t num_parts, int64_t part) const {
    if (!sizes_.shape.is_delta) return column_part(problem_.head_dim, num_parts, part);
    return part == 0 ? all_keys() : ColumnRange{0, 0};
  }
  void copy_state(const float* from, const ColumnRange& values, float* to) const {
    const int64_t first = values.first * sizes_.ld_k;
    const int64_t count = values.count * sizes_.ld_k;
    std::memcpy(to + first, from + first, static_cast<size_t>(count) * sizeof(float));
  }
  void copy_dstate(const float* from, const ColumnRange& keys, float* to) const {
    const int64_t first = keys.first * sizes_.ld_v;
    const int64_t count = keys.count * sizes_.ld_v;
    std::memcpy(to + first, from + first, static_cast<size_t>(count) * sizeof(float));
  }
  int64_t chunk_begin(int64_t chunk) const { return chunk * sizes_.shape.max_rows; }
  int64_t chunk_end(int64_t chunk) const {
    return std::min(chunk_begin(chunk + 1), sequence_.length);
  }

  void load_initial_states() {
    const auto& initial = args_.initial_states;
    const bool has_norm = sizes_.has_divisor();
    for (size_t i = 0; i < heads_.size(); ++i) {
      heads_[i].has_initial = bool(initial.state) || (has_norm && initial.norm);
      float* rows = dstate(i);
      load_state_rows(problem_, initial, sequence_.batch_idx, heads_[i].head, has_norm, sizes_.ld_v,
                      rows);
      float* transposed = span_state(i, 0);
      std::fill_n(transposed, sizes_.state_floats, 0.0f);
      const int64_t columns = problem_.head_dim_v + (has_norm ? 1 : 0);
      for (int64_t d = 0; d < problem_.head_dim; ++d) {
        for (int64_t j = 0; j < columns; ++j) {
          transposed[j * sizes_.ld_k + d] = rows[d * sizes_.ld_v + j];
        }
      }
    }
  }

  void load_dstates() {
    const auto& dfinal = args_.dfinal_states;
    const bool has_norm = sizes_.has_divisor();
    for (size_t i = 0; i < heads_.size(); ++i) {
      heads_[i].has_dfinal = bool(dfinal.state) || (has_norm && dfinal.norm);
      load_state_rows(problem_, dfinal, sequence_.batch_idx, heads_[i].head, has_norm, sizes_.ld_v,
                      dstate(i));
    }
  }

  /// The inputs of the state's recurrence in rows [begin, end).
  ScalarDecayBwdChunk make_chunk(const BwdHead& head, int64_t begin, int64_t end,
                                 const BwdWork& work) const {
    ScalarDecayBwdChunk chunk{};
    chunk.shape = &sizes_.shape;
    chunk.rows = end - begin;
    chunk.k = chunk_rows(rows(args_.inputs.k, problem_.key_head_of(head.head)), begin);
    chunk.v = chunk_rows(rows(args_.inputs.v, head.head), begin);
    chunk.beta = chunk_rows(rows(args_.inputs.beta, head.head), begin);
    chunk.normalizes = args_.qk_l2norm;
    chunk.has_state = head.has_initial || begin > 0;
    chunk.scratch = work.memory.scratch;
    return chunk;
  }
  void set_gates(const BwdHead& head, int64_t begin, ScalarDecayBwdChunk& chunk,
                 BwdWork& work) const {
    chunk.gates = work.gate_rows.of(head.gates, has_input_weight(*problem_.op), begin, chunk.rows);
  }

  /// The values of a state from the one before rows [begin, end) to the one behind them.
  bool advance(const BwdHead& head, const ColumnRange& values, int64_t begin, int64_t end,
               float* before, float* behind, const ScalarDecayBwdChunk* next, BwdWork& work) const {
    ScalarDecayBwdChunk chunk = make_chunk(head, begin, end, work);
    set_gates(head, begin, chunk, work);
    chunk.state = before;
    chunk.state_behind = behind;
    chunk.part = values;
    chunk.next = next;
    return operands_.bwd_state(chunk);
  }
  void advance_rows(const BwdHead& head, const ColumnRange& values, int64_t begin, int64_t end,
                    float* state, BwdWork& work) const {
    for (int64_t t = begin; t < end; ++t) {
      advance(head, values, t, t + 1, state, state, nullptr, work);
    }
  }

  /// A state of the task, and a chunk of its rows.
  struct Turn {
    size_t i;
    int64_t chunk;
  };
  struct HeadRange {
    size_t first;
    size_t count;
  };
  HeadRange all_heads() const { return {0, heads_.size()}; }

  /// Calls visit(turn, the next one or null) for chunks [first, end) of some states, a chunk of
  /// each in turn.
  template <class Visit>
  void for_each_turn(const HeadRange& heads, int64_t first, int64_t end, bool is_back,
                     const Visit& visit) const {
    const int64_t count = static_cast<int64_t>(heads.count);
    const auto turn_at = [&](int64_t n) {
      const int64_t chunk = n / count;
      return Turn{heads.first + static_cast<size_t>(n % count),
                  is_back ? end - 1 - chunk : first + chunk};
    };
    const int64_t num_turns = (end - first) * count;
    for (int64_t n = 0; n < num_turns; ++n) {
      const Turn next = turn_at(n + 1);
      visit(turn_at(n), n + 1 < num_turns ? &next : nullptr);
    }
  }

  /// The values of a state behind a chunk from those before it, which may be in one place; as a
  /// chunk or row by row.
  void advance_chunk(const Turn& turn, const Turn* next, const ColumnRange& values, float* before,
                     float* behind, BwdWork& work) const {
    const BwdHead& head = heads_[turn.i];
    const int64_t begin = chunk_begin(turn.chunk);
    const int64_t end = chunk_end(turn.chunk);
    ScalarDecayBwdChunk fetched{};
    if (next != nullptr) {
      fetched = make_chunk(heads_[next->i], chunk_begin(next->chunk), chunk_end(next->chunk), work);
    }
    const auto* to_fetch = next != nullptr ? &fetched : nullptr;
    if (advance(head, values, begin, end, before, behind, to_fetch, work)) return;
    if (before != behind) copy_state(before, values, behind);
    advance_rows(head, values, begin, end, behind, work);
  }

  int64_t num_spans() const { return ceil_div(num_chunks_, sizes_.span_chunks); }
  int64_t first_chunk(int64_t span) const { return span * sizes_.span_chunks; }
  int64_t end_chunk(int64_t span) const { return std::min(first_chunk(span + 1), num_chunks_); }

  /// The states before the spans.
  void save_spans(const HeadRange& heads, const ColumnRange& values, BwdWork& work) const {
    const int64_t end = (num_spans() - 1) * sizes_.span_chunks;
    for_each_turn(heads, 0, end, /*is_back=*/false, [&](const Turn& turn, const Turn* next) {
      const int64_t span = turn.chunk / sizes_.span_chunks;
      float* const behind = span_state(turn.i, span + 1);
      float* const before = turn.chunk == first_chunk(span) ? span_state(turn.i, span) : behind;
      advance_chunk(turn, next, values, before, behind, work);
    });
  }

  /// The states before the chunks of a span.
  void fill_states(const HeadRange& heads, const ColumnRange& values, int64_t span,
                   BwdWork& work) const {
    const int64_t first = first_chunk(span);
    for (size_t i = heads.first; i < heads.first + heads.count; ++i) {
      copy_state(span_state(i, span), values, chunk_state(i, first));
    }
    for_each_turn(heads, first, end_chunk(span) - 1, /*is_back=*/false,
                  [&](const Turn& turn, const Turn* next) {
                    advance_chunk(turn, next, values, chunk_state(turn.i, turn.chunk),
                                  chunk_state(turn.i, turn.chunk + 1), work);
                  });
  }

  /// The gradients of the states behind the chunks of a span, and of that before it.
  void fill_dstates(size_t i, const ColumnRange& keys, int64_t span, BwdWork& work) {
    for (int64_t chunk = end_chunk(span) - 1; chunk >= first_chunk(span); --chunk) {
      copy_dstate(dstate(i), keys, chunk_dstate(i, chunk));
      const int64_t begin = chunk_begin(chunk);
      const int64_t end = chunk_end(chunk);
      const bool may_be_whole = heads_[i].is_whole[static_cast<size_t>(chunk)] != 0;
      if (may_be_whole && go_back(i, keys, chunk, begin, end, work)) continue;
      for (int64_t t = end - 1; t >= begin; --t) go_back(i, keys, chunk, t, t + 1, work);
    }
  }

  /// The keys of a state's gradient from that behind rows [begin, end) to that before them, as a
  /// chunk or row by row.
  bool go_back(size_t i, const ColumnRange& keys, int64_t chunk_idx, int64_t begin, int64_t end,
               BwdWork& work) {
    ScalarDecayBwdChunk chunk = make_full_chunk(i, chunk_idx, begin, end, work.turns[0], work);
    set_gates(heads_[i], begin, chunk, work);
    chunk.dstate = dstate(i);
    chunk.part = keys;
    return operands_.bwd_dstate(chunk);
  }

  /// What rows of a chunk are divided by, from the state before it.
  void find_divisors(size_t i, int64_t chunk, BwdWork& work) {
    const int64_t begin = chunk_begin(chunk);
    const int64_t end = chunk_end(chunk);
    float* state = chunk_state(i, chunk);
    if (find_divisors_of(i, chunk, begin, end, state, work)) return;
    heads_[i].is_whole[static_cast<size_t>(chunk)] = 0;
    copy_state(state, all_values(), work.memory.row_state);
    state = work.memory.row_state;
    for (int64_t t = begin; t < end; ++t) {
      find_divisors_of(i, chunk, t, t + 1, state, work);
      advance_rows(heads_[i], all_values(), t, t + 1, state, work);
    }
  }
  bool find_divisors_of(size_t i, int64_t chunk_idx, int64_t begin, int64_t end, float* state,
                        BwdWork& work) {
    ScalarDecayBwdChunk chunk = make_full_chunk(i, chunk_idx, begin, end, work.turns[0], work);
    set_gates(heads_[i], begin, chunk, work);
    chunk.state = state;
    return operands_.bwd_divisors(chunk);
  }

  void run_span(int64_t span, BwdWork& work) {
    fill_states(all_heads(), all_values(), span, work);
    for_each_turn(all_heads(), first_chunk(span), end_chunk(span), /*is_back=*/true,
                  [&](const Turn& turn, const Turn* next) {
                    run_chunk(turn, next, dstate(turn.i), /*keeps_dstate=*/false, work);
                  });
  }

  enum class Recurrence : uint8_t { kSavedStates, kStates, kDstates };

  /// Recurrences of all states, side by side and in parts.
  void run_parts(const Context& context, std::initializer_list<Recurrence> recurrences,
                 int64_t span) {
    const auto num_streams = static_cast<int64_t>(heads_.size() * recurrences.size());
    const int64_t dim = std::max(problem_.head_dim, problem_.head_dim_v);
    const int64_t parts = column_parts(dim, num_streams, num_workers_of(context));
    parallel_for(context, num_streams * parts, [&](int64_t task, int worker) {
      BwdWork work(memories_[static_cast<size_t>(worker)], sizes_);
      const auto stream = static_cast<size_t>(task / parts);
      const Recurrence recurrence = recurrences.begin()[stream % recurrences.size()];
      const size_t i = stream / recurrences.size();
      const bool is_dstate = recurrence == Recurrence::kDstates;
      const ColumnRange part =
          is_dstate ? key_part(parts, task % parts) : value_part(parts, task % parts);
      if (part.count == 0) return;
      if (is_dstate) {
        fill_dstates(i, part, span, work);
      } else if (recurrence == Recurrence::kStates) {
        fill_states({i, 1}, part, span, work);
      } else {
        save_spans({i, 1}, part, work);
      }
    });
  }

  /// Calls visit(chunk, work) for the chunks of a span, in any order.
  template <class Visit>
  void for_each_chunk(const Context& context, int64_t span, const Visit& visit) {
    parallel_for(context, end_chunk(span) - first_chunk(span), [&](int64_t task, int worker) {
      BwdWork work(memories_[static_cast<size_t>(worker)], sizes_);
      visit(first_chunk(span) + task, work);
    });
  }

  void run_span_by_levels(int64_t span, const Context& context) {
    if (!sizes_.has_divisor()) {
      run_parts(context, {Recurrence::kStates, Recurrence::kDstates}, span);
    } else {
      run_parts(context, {Recurrence::kStates}, span);
      for_each_chunk(context, span, [&](int64_t chunk, BwdWork& work) {
        for (size_t i = 0; i < heads_.size(); ++i) find_divisors(i, chunk, work);
      });
      run_parts(context, {Recurrence::kDstates}, span);
    }
    for_each_chunk(context, span, [&](int64_t chunk, BwdWork& work) {
      for (size_t i = 0; i < heads_.size(); ++i) {
        run_chunk({i, chunk}, nullptr, chunk_dstate(i, chunk), /*keeps_dstate=*/true, work);
      }
    });
  }

  /// `dstate` is that behind the chunk, and becomes that before it unless it is kept.
  void run_chunk(const Turn& turn, const Turn* next, float* dstate, bool keeps_dstate,
                 BwdWork& work) {
    const int64_t begin = chunk_begin(turn.chunk);
    const int64_t end = chunk_end(turn.chunk);
    float* const state = chunk_state(turn.i, turn.chunk);
    work.turn = 1 - work.turn;
    ScalarDecayBwdChunk whole =
        make_full_chunk(turn.i, turn.chunk, begin, end, work.turns[work.turn], work);
    set_gates(heads_[turn.i], begin, whole, work);
    whole.state = state;
    whole.dstate = dstate;
    whole.keeps_dstate = keeps_dstate;
    ScalarDecayBwdChunk fetched{};
    // Of one state alone what is fetched would drive out what is worked on.
    if (next != nullptr && heads_.size() > 1) {
      fetched = make_full_chunk(next->i, next->chunk, chunk_begin(next->chunk),
                                chunk_end(next->chunk), work.turns[1 - work.turn], work);
      whole.next = &fetched;
    }
    if (operands_.bwd_chunk(whole)) return;
    if (keeps_dstate) {
      copy_dstate(dstate, all_keys(), work.memory.row_dstate);
      dstate = work.memory.row_dstate;
    }
    for (int64_t t = end - 1; t >= begin; --t) {
      copy_state(state, all_values(), work.memory.row_state);
      advance_rows(heads_[turn.i], all_values(), begin, t, work.memory.row_state, work);
      ScalarDecayBwdChunk row = make_full_chunk(turn.i, turn.chunk, t, t + 1, work.row, work);
      set_gates(heads_[turn.i], t, row, work);
      row.state = work.memory.row_state;
      row.dstate = dstate;
      operands_.bwd_chunk(row);
    }
  }

  /// Rows [begin, end) of a chunk, without gates and states.
  ScalarDecayBwdChunk make_full_chunk(size_t i, int64_t chunk_idx, int64_t begin, int64_t end,
                                      BwdAddresses& addresses, const BwdWork& work) {
    BwdHead& head = heads_[i];
    ScalarDecayBwdChunk chunk = make_chunk(head, begin, end, work);
    addresses.q.clear();
    addresses.dout.clear();
    addresses.dq.clear();
    for (int64_t member = 0; member < problem_.heads_a_state(); ++member) {
      const int64_t head_out = head.head * problem_.heads_a_state() + member;
      const int64_t query_head = problem_.query_head_of(head_out);
      addresses.q.push_back(chunk_rows(rows(args_.inputs.q, query_head), begin));
      addresses.dout.push_back(chunk_rows(rows(args_.dout, head_out), begin));
      addresses.dq.push_back(chunk_rows(rows(args_.gradients.q, query_head), begin));
    }
    const int64_t first_row = begin - chunk_begin(chunk_idx);
    chunk.q = addresses.q.data();
    chunk.dout = addresses.dout.data();
    chunk.num_members = problem_.heads_a_state();
    chunk.skip = head.skip.empty() ? nullptr : head.skip.data();
    chunk.part = all_keys();
    chunk.has_dstate = head.has_dfinal || end < sequence_.length;
    if (sizes_.has_divisor()) {
      chunk.divisors = chunk_divisors(i, chunk_idx) + first_row * problem_.heads_a_state();
    }
    chunk.dq = work.memory.dq + first_row * sizes_.ld_k;
    chunk.dk = work.memory.dk + first_row * sizes_.ld_k;
    chunk.is_added = !head.is_first;
    chunk.is_last = head.is_last;
    chunk.dq_rows = addresses.dq.data();
    chunk.dk_rows = chunk_rows(rows(args_.gradients.k, problem_.key_head_of(head.head)), begin);
    chunk.dv = chunk_rows(rows(args_.gradients.v, head.head), begin);
    chunk.dbeta = chunk_rows(rows(args_.gradients.beta, head.head), begin);
    chunk.dlog_decay = head.dlog_decay.data() + begin;
    chunk.dweight = head.dweight.data() + begin;
    chunk.dskip = head.dskip.data() + static_cast<size_t>(chunk_idx) * head.skip.size();
    return chunk;
  }

  const LinearProblem& problem_;
  const BwdSizes& sizes_;
  const LinearArgs& args_;
  const LinearSequence& sequence_;
  std::span<const BwdMemory> memories_;
  const BwdMemory& memory_;  ///< the first one's, which has what all share
  const ScalarDecayOperandKernels& operands_;
  int64_t num_chunks_;
  KeptList<BwdHead> heads_;
};

/// For as many key heads in a task as leave every worker two tasks, and need no more spans; these
/// do not count where one key head has some already.
BwdSizes bwd_sizes(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                   int64_t num_workers) {
  const auto sizes_for = [&](int64_t num_keys) {
    return BwdSizes(isa, problem, plan.chunk_size, num_workers, num_keys);
  };
  const BwdSizes alone = sizes_for(1);
  const int64_t most =
      std::min(max_state_group(problem) / problem.states_a_key(), problem.num_key_heads);
  for (int64_t keys = std::min(most, plan.num_tasks / (2 * num_workers)); keys > 1; --keys) {
    const BwdSizes sizes = sizes_for(keys);
    if (sizes.num_spans == 1 || alone.num_spans > 1) return sizes;
  }
  return alone;
}

int64_t bwd_bytes(const IsaEntry& isa, const LinearProblem& problem, const BwdSizes& sizes) {
  WorkspaceCursor cursor;
  BwdMemory(isa, problem, sizes, cursor);
  return cursor.used();
}

}  // namespace

LinearPlan plan_scalar_decay_bwd(const IsaEntry& isa, const LinearProblem& problem) {
  LinearPlan plan;
  plan.implementation = isa_name(isa.isa);
  plan.chunk_size = chunk_rows_of(problem);
  plan.num_tasks = problem.batch_size * problem.num_key_heads;
  // Two workers have no more than others, but for one there may be more than half of it.
  plan.bytes_a_worker = bwd_bytes(isa, problem, bwd_sizes(isa, problem, plan, 2));
  const int64_t alone = bwd_bytes(isa, problem, bwd_sizes(isa, problem, plan, 1));
  plan.bytes = std::max<int64_t>(0, alone - plan.bytes_a_worker);
  return plan;
}

void launch_scalar_decay_bwd(const IsaEntry& isa, const LinearProblem& problem,
                             const LinearPlan& plan, const LinearArgs& args,
                             const Context& context) {
  const KeptList<LinearSequence> sequences = linear_sequences(problem, args);
  const std::string_view op = linear_op_name(*problem.op, problem.pass);
  const Context limited = with_workers_for(3 * scalar_decay_work(problem), context);
  const int64_t num_workers = num_workers_of(limited);
  const BwdSizes sizes = bwd_sizes(isa, problem, plan, num_workers);
  const int64_t bytes = bwd_bytes(isa, problem, sizes);
  const Workspace workspace(op, context, bytes * num_workers);
  KeptList<BwdMemory> memories;
  for (int64_t worker = 0; worker < num_workers; ++worker) {
    WorkspaceCursor cursor(workspace.data() + worker * bytes);
    memories.emplace_back(isa, problem, sizes, cursor);
  }
  ParameterSums sums(problem, args);
  const int64_t tasks = ceil_div(problem.num_key_heads, sizes.num_keys);
  const auto stream_of = [&](int64_t task, std::span<const BwdMemory> own) {
    const auto& sequence = sequences[static_cast<size_t>(task / tasks)];
    return BwdStream(isa, problem, sizes, args, sequence, task % tasks * sizes.num_keys, own);
  };
  if (plan.num_tasks < num_workers) {
    for (int64_t task = 0; task < plan.num_tasks; ++task) {
      stream_of(task, memories).run_by_levels(limited, sums);
    }
  } else {
    parallel_for(limited, problem.batch_size * tasks, [&](int64_t task, int worker) {
      stream_of(task, {&memories[static_cast<size_t>(worker)], 1}).run(sums);
    });
  }
  sums.store();
}

}  // namespace flashtile::cpu
