// SPDX-License-Identifier: Apache-2.0
//
// Backward of scalar decay on the CPU. A task is one key head of one sequence with all states that
// read it, from the last chunk to the first. States inside of the sequence are worked out again:
// one is kept for each span, and within a span one for each chunk.
//
// Where such tasks are fewer than workers, all workers take one after the other by two levels: in a
// span first the states before its chunks and the gradients of those behind them, side by side and
// in parts, then its chunks in any order. With a divisor the gradients follow the states, and what
// outputs are divided by, chunks in any order, is between. The sums are the same, and so are the
// bits.
#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <span>

#include "core/executor.hpp"
#include "core/workspace.hpp"
#include "cpu/scalar_decay_call.hpp"
#include "ops/linear/parameter_sums.hpp"

namespace flashtile::cpu {
namespace {

/// The states of a span's chunks that a worker keeps: all of a sequence up to here. Two workers
/// have less than the 32 MiB from which on malloc gives memory back, and gets it page by page.
constexpr int64_t kSpanBytes = int64_t{12} << 20;

/// Sizes of what a task needs.
struct BwdSizes {
  ScalarDecayShape shape;
  int64_t ld_k, ld_v;
  int64_t state_floats;  ///< of the transposed state
  int64_t dstate_floats;
  int64_t num_states;   ///< that share the key head
  int64_t span_chunks;  ///< chunks of a span
  int64_t num_spans;    ///< of the longest sequence

  BwdSizes(const IsaEntry& isa, const LinearProblem& problem, int64_t max_rows)
      : shape(scalar_decay_shape(problem, max_rows)),
        ld_k(isa.linear->scalar_decay.dk_ld(shape)),
        ld_v(isa.linear->scalar_decay.state_ld(shape)),
        num_states(problem.states_a_key()) {
    const int64_t columns = shape.head_dim_v + (shape.divisor == ChunkDivisor::kNone ? 0 : 1);
    state_floats = columns * ld_k;
    dstate_floats = shape.head_dim * ld_v;
    const int64_t num_chunks = std::max<int64_t>(1, ceil_div(problem.max_seqlen, max_rows));
    const int64_t chunk_bytes = std::max<int64_t>(1, num_states * state_floats * 4);
    span_chunks = std::clamp<int64_t>(kSpanBytes / chunk_bytes, 1, num_chunks);
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
    const auto& operands = scalar_decay_operands(isa, problem.dtype);
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
  ScalarGates gates;
  std::vector<float> skip;
  std::vector<double> dlog_decay, dweight;
  std::vector<double> dskip;  ///< of each chunk and value dimension
  /// Of each chunk: 0 where bwd_divisors found that it has to be taken row by row.
  std::vector<uint8_t> is_whole;
  bool has_initial = false;
  bool has_dfinal = false;
};

/// What a worker changes while it works on a stream.
struct BwdWork {
  const BwdMemory& memory;
  ChunkGateRows gate_rows;
  std::vector<ChunkRows> q, dout, dq;

  BwdWork(const BwdMemory& of_worker, const BwdSizes& sizes)
      : memory(of_worker), gate_rows(sizes.shape.max_rows) {}
};

/// One key head of one sequence.
class BwdStream {
 public:
  /// With the memory of one worker, or of all of them.
  BwdStream(const IsaEntry& isa, const LinearProblem& problem, const BwdSizes& sizes,
            const LinearArgs& args, const LinearSequence& sequence, int64_t key_head,
            std::span<const BwdMemory> memories)
      : problem_(problem),
        sizes_(sizes),
        args_(args),
        sequence_(sequence),
        key_head_(key_head),
        memories_(memories),
        memory_(memories[0]),
        operands_(scalar_decay_operands(isa, problem.dtype)),
        num_chunks_(ceil_div(sequence.length, sizes.shape.max_rows)) {
    for (int64_t i = 0; i < sizes.num_states; ++i) add_head(key_head * sizes.num_states + i);
  }

  /// On the thread that calls.
  void run(ParameterSums& sums) {
    load_initial_states();
    BwdWork work(memory_, sizes_);
    for (size_t i = 0; i < heads_.size(); ++i) save_spans(i, all_values(), work);
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

  /// The chunk of rows [begin, begin + count) without what differs between the passes.
  ScalarDecayBwdChunk make_chunk(const BwdHead& head, int64_t begin, int64_t count, float* state,
                                 BwdWork& work) const {
    ScalarDecayBwdChunk chunk{};
    chunk.shape = &sizes_.shape;
    chunk.rows = count;
    chunk.k = chunk_rows(rows(args_.inputs.k, key_head_), begin);
    chunk.v = chunk_rows(rows(args_.inputs.v, head.head), begin);
    chunk.gates = work.gate_rows.of(head.gates, has_input_weight(*problem_.op), begin, count);
    chunk.state = state;
    chunk.has_state = head.has_initial || begin > 0;
    chunk.next_begin = count;
    chunk.next_end = std::min(count + sizes_.shape.max_rows, sequence_.length - begin);
    chunk.scratch = work.memory.scratch;
    return chunk;
  }

  /// The values of a state from the one before rows [begin, end) to the one behind them, as a chunk
  /// or row by row.
  bool advance(const BwdHead& head, const ColumnRange& values, int64_t begin, int64_t end,
               float* state, BwdWork& work) const {
    ScalarDecayBwdChunk chunk = make_chunk(head, begin, end - begin, state, work);
    chunk.part = values;
    return operands_.bwd_state(chunk);
  }

  void advance_rows(const BwdHead& head, const ColumnRange& values, int64_t begin, int64_t end,
                    float* state, BwdWork& work) const {
    for (int64_t t = begin; t < end; ++t) advance(head, values, t, t + 1, state, work);
  }

  void advance_chunk(const BwdHead& head, const ColumnRange& values, int64_t chunk, float* state,
                     BwdWork& work) const {
    const int64_t begin = chunk_begin(chunk);
    const int64_t end = chunk_end(chunk);
    if (advance(head, values, begin, end, state, work)) return;
    advance_rows(head, values, begin, end, state, work);
  }

  int64_t num_spans() const { return ceil_div(num_chunks_, sizes_.span_chunks); }
  int64_t first_chunk(int64_t span) const { return span * sizes_.span_chunks; }
  int64_t end_chunk(int64_t span) const { return std::min(first_chunk(span + 1), num_chunks_); }

  /// The states before the spans.
  void save_spans(size_t i, const ColumnRange& values, BwdWork& work) const {
    for (int64_t span = 0; span + 1 < num_spans(); ++span) {
      float* const state = span_state(i, span + 1);
      copy_state(span_state(i, span), values, state);
      for (int64_t chunk = first_chunk(span); chunk < end_chunk(span); ++chunk) {
        advance_chunk(heads_[i], values, chunk, state, work);
      }
    }
  }

  /// The states before the chunks of a span.
  void fill_states(size_t i, const ColumnRange& values, int64_t span, BwdWork& work) const {
    const int64_t first = first_chunk(span);
    copy_state(span_state(i, span), values, chunk_state(i, first));
    for (int64_t chunk = first; chunk + 1 < end_chunk(span); ++chunk) {
      copy_state(chunk_state(i, chunk), values, chunk_state(i, chunk + 1));
      advance_chunk(heads_[i], values, chunk, chunk_state(i, chunk + 1), work);
    }
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
    ScalarDecayBwdChunk chunk = make_full_chunk(i, chunk_idx, begin, end, nullptr, dstate(i), work);
    chunk.part = keys;
    return operands_.bwd_dstate(chunk);
  }

  /// What rows of a chunk are divided by, from the state before it.
  void find_divisors(size_t i, int64_t chunk, BwdWork& work) {
    const int64_t begin = chunk_begin(chunk);
    const int64_t end = chunk_end(chunk);
    float* state = chunk_state(i, chunk);
    if (operands_.bwd_divisors(make_full_chunk(i, chunk, begin, end, state, nullptr, work))) return;
    heads_[i].is_whole[static_cast<size_t>(chunk)] = 0;
    copy_state(state, all_values(), work.memory.row_state);
    state = work.memory.row_state;
    for (int64_t t = begin; t < end; ++t) {
      operands_.bwd_divisors(make_full_chunk(i, chunk, t, t + 1, state, nullptr, work));
      advance_rows(heads_[i], all_values(), t, t + 1, state, work);
    }
  }

  void run_span(int64_t span, BwdWork& work) {
    for (size_t i = 0; i < heads_.size(); ++i) fill_states(i, all_values(), span, work);
    for (int64_t chunk = end_chunk(span) - 1; chunk >= first_chunk(span); --chunk) {
      for (size_t i = 0; i < heads_.size(); ++i) {
        run_chunk(i, chunk, dstate(i), /*keeps_dstate=*/false, work);
      }
    }
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
      const ColumnRange part = is_dstate ? column_part(problem_.head_dim, parts, task % parts)
                                         : value_part(parts, task % parts);
      if (part.count == 0) return;
      if (is_dstate) {
        fill_dstates(i, part, span, work);
      } else if (recurrence == Recurrence::kStates) {
        fill_states(i, part, span, work);
      } else {
        save_spans(i, part, work);
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
        run_chunk(i, chunk, chunk_dstate(i, chunk), /*keeps_dstate=*/true, work);
      }
    });
  }

  /// `dstate` is that behind the chunk, and becomes that before it unless it is kept.
  void run_chunk(size_t i, int64_t chunk, float* dstate, bool keeps_dstate, BwdWork& work) {
    const int64_t begin = chunk_begin(chunk);
    const int64_t end = chunk_end(chunk);
    float* const state = chunk_state(i, chunk);
    ScalarDecayBwdChunk whole = make_full_chunk(i, chunk, begin, end, state, dstate, work);
    whole.keeps_dstate = keeps_dstate;
    if (operands_.bwd_chunk(whole)) return;
    if (keeps_dstate) {
      copy_dstate(dstate, all_keys(), work.memory.row_dstate);
      dstate = work.memory.row_dstate;
    }
    for (int64_t t = end - 1; t >= begin; --t) {
      copy_state(state, all_values(), work.memory.row_state);
      advance_rows(heads_[i], all_values(), begin, t, work.memory.row_state, work);
      operands_.bwd_chunk(make_full_chunk(i, chunk, t, t + 1, work.memory.row_state, dstate, work));
    }
  }

  /// Rows [begin, end) of a chunk.
  ScalarDecayBwdChunk make_full_chunk(size_t i, int64_t chunk_idx, int64_t begin, int64_t end,
                                      float* state, float* dstate, BwdWork& work) {
    BwdHead& head = heads_[i];
    ScalarDecayBwdChunk chunk = make_chunk(head, begin, end - begin, state, work);
    work.q.clear();
    work.dout.clear();
    work.dq.clear();
    for (int64_t member = 0; member < problem_.heads_a_state(); ++member) {
      const int64_t head_out = head.head * problem_.heads_a_state() + member;
      const int64_t query_head = problem_.query_head_of(head_out);
      work.q.push_back(chunk_rows(rows(args_.inputs.q, query_head), begin));
      work.dout.push_back(chunk_rows(rows(args_.dout, head_out), begin));
      work.dq.push_back(chunk_rows(rows(args_.gradients.q, query_head), begin));
    }
    const int64_t first_row = begin - chunk_begin(chunk_idx);
    chunk.q = work.q.data();
    chunk.dout = work.dout.data();
    chunk.num_members = problem_.heads_a_state();
    chunk.skip = head.skip.empty() ? nullptr : head.skip.data();
    chunk.dstate = dstate;
    chunk.part = all_keys();
    chunk.has_dstate = head.has_dfinal || end < sequence_.length;
    if (sizes_.has_divisor()) {
      chunk.divisors = chunk_divisors(i, chunk_idx) + first_row * problem_.heads_a_state();
    }
    chunk.dq = work.memory.dq + first_row * sizes_.ld_k;
    chunk.dk = work.memory.dk + first_row * sizes_.ld_k;
    chunk.is_added = i > 0;
    chunk.is_last = i + 1 == heads_.size();
    chunk.dq_rows = work.dq.data();
    chunk.dk_rows = chunk_rows(rows(args_.gradients.k, key_head_), begin);
    chunk.dv = chunk_rows(rows(args_.gradients.v, head.head), begin);
    chunk.next_begin = -std::min(sizes_.shape.max_rows, begin);
    chunk.next_end = 0;
    chunk.dlog_decay = head.dlog_decay.data() + begin;
    chunk.dweight = head.dweight.data() + begin;
    chunk.dskip = head.dskip.data() + static_cast<size_t>(chunk_idx) * head.skip.size();
    return chunk;
  }

  const LinearProblem& problem_;
  const BwdSizes& sizes_;
  const LinearArgs& args_;
  const LinearSequence& sequence_;
  int64_t key_head_;
  std::span<const BwdMemory> memories_;
  const BwdMemory& memory_;  ///< the first one's, which has what all share
  const ScalarDecayOperandKernels& operands_;
  int64_t num_chunks_;
  std::vector<BwdHead> heads_;
};

}  // namespace

LinearPlan plan_scalar_decay_bwd(const IsaEntry& isa, const LinearProblem& problem) {
  LinearPlan plan;
  plan.implementation = isa_name(isa.isa);
  plan.chunk_size = chunk_rows_of(problem);
  plan.num_tasks = problem.batch_size * problem.num_key_heads;
  WorkspaceCursor cursor;
  BwdMemory(isa, problem, BwdSizes(isa, problem, plan.chunk_size), cursor);
  plan.bytes_a_worker = cursor.used();
  return plan;
}

void launch_scalar_decay_bwd(const IsaEntry& isa, const LinearProblem& problem,
                             const LinearPlan& plan, const LinearArgs& args,
                             const Context& context) {
  const std::vector<LinearSequence> sequences = linear_sequences(problem, args);
  const std::string_view op = linear_op_name(*problem.op, problem.pass);
  const Context limited = with_workers_for(3 * scalar_decay_work(problem), context);
  const int64_t num_workers = num_workers_of(limited);
  const Workspace workspace(op, context, plan.bytes_for(op, num_workers));
  const BwdSizes sizes(isa, problem, plan.chunk_size);
  std::vector<BwdMemory> memories;
  for (int64_t worker = 0; worker < num_workers; ++worker) {
    WorkspaceCursor cursor(workspace.data() + worker * plan.bytes_a_worker);
    memories.emplace_back(isa, problem, sizes, cursor);
  }
  ParameterSums sums(problem, args);
  const auto stream_of = [&](int64_t task, std::span<const BwdMemory> own) {
    const auto& sequence = sequences[static_cast<size_t>(task / problem.num_key_heads)];
    return BwdStream(isa, problem, sizes, args, sequence, task % problem.num_key_heads, own);
  };
  if (plan.num_tasks < num_workers) {
    for (int64_t task = 0; task < plan.num_tasks; ++task) {
      stream_of(task, memories).run_by_levels(limited, sums);
    }
  } else {
    parallel_for(limited, plan.num_tasks, [&](int64_t task, int worker) {
      stream_of(task, {&memories[static_cast<size_t>(worker)], 1}).run(sums);
    });
  }
  sums.store();
}

}  // namespace flashtile::cpu
