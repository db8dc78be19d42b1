// SPDX-License-Identifier: Apache-2.0
//
// Backward of scalar decay on the CPU. A task is one key head of one sequence with all states that
// read it, from the last chunk to the first. States inside of the sequence are worked out again:
// one is kept for each span, and within a span one for each chunk.
#include <algorithm>
#include <cstring>

#include "core/executor.hpp"
#include "core/workspace.hpp"
#include "cpu/scalar_decay_call.hpp"
#include "ops/linear/parameter_sums.hpp"

namespace flashtile::cpu {
namespace {

/// The states of a span's chunks that a worker keeps: all of a sequence up to here.
constexpr int64_t kSpanBytes = int64_t{16} << 20;

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
};

struct BwdMemory {
  float* span_states;   ///< before each span, of each state
  float* chunk_states;  ///< before each chunk of a span, of each state
  float* row_state;     ///< before a row, where rows are taken one by one
  float* dstate;        ///< of each state
  float* dq;
  float* dk;
  char* scratch;

  BwdMemory(const IsaEntry& isa, const LinearProblem& problem, const BwdSizes& sizes,
            WorkspaceCursor& cursor) {
    const auto& operands = scalar_decay_operands(isa.linear->scalar_decay, problem.dtype);
    span_states = cursor.take<float>(sizes.num_states * sizes.num_spans * sizes.state_floats);
    chunk_states = cursor.take<float>(sizes.num_states * sizes.span_chunks * sizes.state_floats);
    row_state = cursor.take<float>(sizes.state_floats);
    dstate = cursor.take<float>(sizes.num_states * sizes.dstate_floats);
    dq = cursor.take<float>(sizes.shape.max_rows * sizes.ld_k);
    dk = cursor.take<float>(sizes.shape.max_rows * sizes.ld_k);
    scratch = cursor.take<char>(operands.bwd_scratch_bytes(sizes.shape));
  }
};

/// What is known of one state of a task.
struct BwdHead {
  int64_t head;
  ScalarGates gates;
  std::vector<float> skip;
  std::vector<double> dlog_decay, dweight;
  std::vector<double> dskip;  ///< of each value dimension
  bool has_initial = false;
  bool has_dstate = false;
};

/// One key head of one sequence.
class BwdStream {
 public:
  BwdStream(const IsaEntry& isa, const LinearProblem& problem, const BwdSizes& sizes,
            const LinearArgs& args, const LinearSequence& sequence, int64_t key_head,
            const BwdMemory& memory)
      : problem_(problem),
        sizes_(sizes),
        args_(args),
        sequence_(sequence),
        key_head_(key_head),
        memory_(memory),
        operands_(scalar_decay_operands(isa.linear->scalar_decay, problem.dtype)),
        gate_rows_(sizes.shape.max_rows),
        num_chunks_(ceil_div(sequence.length, sizes.shape.max_rows)) {
    for (int64_t i = 0; i < sizes.num_states; ++i) add_head(key_head * sizes.num_states + i);
  }

  void run(ParameterSums& sums) {
    const int64_t num_spans = ceil_div(num_chunks_, sizes_.span_chunks);
    load_initial_states();
    for (int64_t span = 0; span + 1 < num_spans; ++span) save_next_span(span);
    load_dstates();
    for (int64_t span = num_spans - 1; span >= 0; --span) run_span(span);
    const bool has_norm = sizes_.shape.divisor != ChunkDivisor::kNone;
    for (size_t i = 0; i < heads_.size(); ++i) {
      const BwdHead& each = heads_[i];
      store_state_rows(problem_, args_.dinitial_states, sequence_.batch_idx, each.head, has_norm,
                       sizes_.ld_v, dstate(i));
      store_gate_gradients(problem_, args_, sequence_, each.head, each.gates, each.dlog_decay,
                           each.dweight, sums);
      for (size_t j = 0; j < each.dskip.size(); ++j) {
        sums.add(args_.gradients.D, sequence_.batch_idx, each.head, static_cast<int64_t>(j),
                 each.dskip[j]);
      }
    }
  }

 private:
  void add_head(int64_t head) {
    BwdHead added;
    added.head = head;
    added.gates = scalar_gates(problem_, args_, sequence_, head);
    added.dlog_decay.assign(static_cast<size_t>(sequence_.length), 0.0);
    added.dweight.assign(static_cast<size_t>(sequence_.length), 0.0);
    for (int64_t j = 0; args_.inputs.D && j < problem_.head_dim_v; ++j) {
      added.skip.push_back(static_cast<float>(load_parameter(args_.inputs.D, head, j)));
    }
    added.dskip.assign(added.skip.size(), 0.0);
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
  void copy_state(const float* from, float* to) const {
    std::memcpy(to, from, static_cast<size_t>(sizes_.state_floats) * sizeof(float));
  }
  int64_t chunk_begin(int64_t chunk) const { return chunk * sizes_.shape.max_rows; }
  int64_t chunk_end(int64_t chunk) const {
    return std::min(chunk_begin(chunk + 1), sequence_.length);
  }

  void load_initial_states() {
    const auto& initial = args_.initial_states;
    const bool has_norm = sizes_.shape.divisor != ChunkDivisor::kNone;
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
    const bool has_norm = sizes_.shape.divisor != ChunkDivisor::kNone;
    for (size_t i = 0; i < heads_.size(); ++i) {
      heads_[i].has_dstate = bool(dfinal.state) || (has_norm && dfinal.norm);
      load_state_rows(problem_, dfinal, sequence_.batch_idx, heads_[i].head, has_norm, sizes_.ld_v,
                      dstate(i));
    }
  }

  /// The chunk of rows [begin, begin + count) without what differs between the passes.
  ScalarDecayBwdChunk make_chunk(BwdHead& head, int64_t begin, int64_t count, float* state) {
    ScalarDecayBwdChunk chunk{};
    chunk.shape = &sizes_.shape;
    chunk.rows = count;
    chunk.k = chunk_rows(rows(args_.inputs.k, key_head_), begin);
    chunk.v = chunk_rows(rows(args_.inputs.v, head.head), begin);
    chunk.gates = gate_rows_.of(head.gates, has_input_weight(*problem_.op), begin, count);
    chunk.state = state;
    chunk.has_state = head.has_initial || begin > 0;
    chunk.next_begin = count;
    chunk.next_end = std::min(count + sizes_.shape.max_rows, sequence_.length - begin);
    chunk.scratch = memory_.scratch;
    return chunk;
  }

  void advance_rows(BwdHead& head, int64_t begin, int64_t end, float* state) {
    for (int64_t t = begin; t < end; ++t) operands_.bwd_state(make_chunk(head, t, 1, state));
  }

  void advance_chunk(BwdHead& head, int64_t chunk, float* state) {
    const int64_t begin = chunk_begin(chunk);
    const int64_t end = chunk_end(chunk);
    if (operands_.bwd_state(make_chunk(head, begin, end - begin, state))) return;
    advance_rows(head, begin, end, state);
  }

  void save_next_span(int64_t span) {
    for (size_t i = 0; i < heads_.size(); ++i) {
      copy_state(span_state(i, span), span_state(i, span + 1));
      for (int64_t n = 0; n < sizes_.span_chunks; ++n) {
        advance_chunk(heads_[i], span * sizes_.span_chunks + n, span_state(i, span + 1));
      }
    }
  }

  void run_span(int64_t span) {
    const int64_t first = span * sizes_.span_chunks;
    const int64_t end = std::min(first + sizes_.span_chunks, num_chunks_);
    for (size_t i = 0; i < heads_.size(); ++i) {
      copy_state(span_state(i, span), chunk_state(i, first));
      for (int64_t chunk = first; chunk + 1 < end; ++chunk) {
        copy_state(chunk_state(i, chunk), chunk_state(i, chunk + 1));
        advance_chunk(heads_[i], chunk, chunk_state(i, chunk + 1));
      }
    }
    for (int64_t chunk = end - 1; chunk >= first; --chunk) {
      for (size_t i = 0; i < heads_.size(); ++i) run_chunk(i, chunk);
    }
  }

  void run_chunk(size_t i, int64_t chunk) {
    const int64_t begin = chunk_begin(chunk);
    const int64_t end = chunk_end(chunk);
    if (run_rows(i, begin, begin, end, chunk_state(i, chunk))) return;
    for (int64_t t = end - 1; t >= begin; --t) {
      copy_state(chunk_state(i, chunk), memory_.row_state);
      advance_rows(heads_[i], begin, t, memory_.row_state);
      run_rows(i, begin, t, t + 1, memory_.row_state);
    }
  }

  /// Rows [begin, end) of a chunk that begins at chunk_begin.
  bool run_rows(size_t i, int64_t chunk_begin, int64_t begin, int64_t end, float* state) {
    BwdHead& head = heads_[i];
    ScalarDecayBwdChunk chunk = make_chunk(head, begin, end - begin, state);
    q_.clear();
    dout_.clear();
    dq_.clear();
    for (int64_t member = 0; member < problem_.heads_a_state(); ++member) {
      const int64_t head_out = head.head * problem_.heads_a_state() + member;
      const int64_t query_head = problem_.query_head_of(head_out);
      q_.push_back(chunk_rows(rows(args_.inputs.q, query_head), begin));
      dout_.push_back(chunk_rows(rows(args_.dout, head_out), begin));
      dq_.push_back(chunk_rows(rows(args_.gradients.q, query_head), begin));
    }
    chunk.q = q_.data();
    chunk.dout = dout_.data();
    chunk.num_members = problem_.heads_a_state();
    chunk.skip = head.skip.empty() ? nullptr : head.skip.data();
    chunk.dstate = dstate(i);
    chunk.has_dstate = head.has_dstate;
    chunk.dq = memory_.dq + (begin - chunk_begin) * sizes_.ld_k;
    chunk.dk = memory_.dk + (begin - chunk_begin) * sizes_.ld_k;
    chunk.is_added = i > 0;
    chunk.is_last = i + 1 == heads_.size();
    chunk.dq_rows = dq_.data();
    chunk.dk_rows = chunk_rows(rows(args_.gradients.k, key_head_), begin);
    chunk.dv = chunk_rows(rows(args_.gradients.v, head.head), begin);
    chunk.next_begin = -std::min(sizes_.shape.max_rows, begin);
    chunk.next_end = 0;
    chunk.dlog_decay = head.dlog_decay.data() + begin;
    chunk.dweight = head.dweight.data() + begin;
    chunk.dskip = head.dskip.data();
    const bool is_done = operands_.bwd_chunk(chunk);
    head.has_dstate = head.has_dstate || is_done;
    return is_done;
  }

  const LinearProblem& problem_;
  const BwdSizes& sizes_;
  const LinearArgs& args_;
  const LinearSequence& sequence_;
  int64_t key_head_;
  const BwdMemory& memory_;
  const ScalarDecayOperandKernels& operands_;
  ChunkGateRows gate_rows_;
  int64_t num_chunks_;
  std::vector<BwdHead> heads_;
  std::vector<ChunkRows> q_, dout_, dq_;
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
  const Workspace workspace(op, context, plan.bytes_for(op, num_workers_of(limited)));
  const BwdSizes sizes(isa, problem, plan.chunk_size);
  ParameterSums sums(problem, args);
  parallel_for(limited, plan.num_tasks, [&](int64_t task, int worker) {
    WorkspaceCursor cursor(workspace.data() + worker * plan.bytes_a_worker);
    const BwdMemory memory(isa, problem, sizes, cursor);
    const auto& sequence = sequences[static_cast<size_t>(task / problem.num_key_heads)];
    BwdStream(isa, problem, sizes, args, sequence, task % problem.num_key_heads, memory).run(sums);
  });
  sums.store();
}

}  // namespace flashtile::cpu
