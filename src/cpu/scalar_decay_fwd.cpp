// SPDX-License-Identifier: Apache-2.0
//
// Forward of scalar decay on the CPU. A task is one state of one sequence, chunk after chunk, or a
// part of its columns where states are fewer than workers. Columns do not depend on each other, so
// the bits are the same; only Q K' is worked out for each part.
#include <algorithm>
#include <array>

#include "core/executor.hpp"
#include "core/workspace.hpp"
#include "cpu/cpu_info.hpp"
#include "cpu/scalar_decay_call.hpp"

namespace flashtile::cpu {

const ScalarDecayOperandKernels& scalar_decay_operands(const IsaEntry& isa,
                                                       const LinearProblem& problem) {
  const bool is_paired = problem.dtype == DType::kBF16 && isa.scalar_decay_pairs != nullptr;
  if (problem.op->update == LinearUpdate::kDelta) {
    return is_paired ? *isa.delta_pairs : *isa.delta_floats;
  }
  return is_paired ? *isa.scalar_decay_pairs : isa.linear->scalar_decay.operands;
}

ScalarDecayShape scalar_decay_shape(const LinearProblem& problem, int64_t max_rows) {
  const auto divisor = [&] {
    switch (problem.normalizer) {
      case LinearNormalizer::kSum:
        return ChunkDivisor::kSum;
      case LinearNormalizer::kAtLeastOne:
        return ChunkDivisor::kAtLeastOne;
      case LinearNormalizer::kAtLeastFloor:
        return ChunkDivisor::kAtLeastFloor;
      case LinearNormalizer::kNone:
        break;
    }
    return ChunkDivisor::kNone;
  };
  return {max_rows,
          problem.head_dim,
          problem.head_dim_v,
          divisor(),
          static_cast<float>(problem.scale),
          problem.op->update == LinearUpdate::kDelta};
}

namespace {

/// What a worker needs for the rows of some states.
struct FwdMemory {
  float* states;
  char* scratch;

  FwdMemory(const IsaEntry& isa, const LinearProblem& problem, const ScalarDecayShape& shape,
            WorkspaceCursor& cursor) {
    const auto& operands = scalar_decay_operands(isa, problem);
    states = cursor.take<float>(max_state_group(problem) * problem.head_dim *
                                isa.linear->scalar_decay.state_ld(shape));
    scratch = cursor.take<char>(operands.fwd_scratch_bytes(shape));
  }
};

/// Some columns of one state of one sequence.
class FwdStream {
 public:
  FwdStream(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
            const LinearArgs& args, const LinearSequence& sequence, int64_t head,
            const ColumnRange& columns)
      : problem_(problem),
        args_(args),
        sequence_(sequence),
        head_(head),
        columns_(columns),
        shape_(shape_of(problem, plan, columns)),
        operands_(scalar_decay_operands(isa, problem)),
        ld_(isa.linear->scalar_decay.state_ld(shape_)),
        gates_(scalar_gates(problem, args, sequence, head)),
        gate_rows_(plan.chunk_size) {
    for (int64_t j = 0; args.inputs.D && j < columns.count; ++j) {
      skip_.push_back(static_cast<float>(load_parameter(args.inputs.D, head, columns.first + j)));
    }
  }

  void begin(float* state) {
    state_ = state;
    const auto& initial = args_.initial_states;
    has_state_ = bool(initial.state) || (has_norm() && initial.norm);
    std::fill_n(state, problem_.head_dim * ld_, 0.0f);
    load_state_columns(initial.state, sequence_.batch_idx, head_, columns_.first, columns_.count,
                       ld_, state);
    if (has_norm()) {
      load_state_vector(initial.norm, sequence_.batch_idx, head_, ld_, state + columns_.count);
    }
  }

  /// Rows from `begin` on. The lists that it points to are there until the next call but one.
  ScalarDecayFwdChunk make_chunk(int64_t begin, int64_t count) {
    turn_ = 1 - turn_;
    return make_chunk(begin, count, addresses_[turn_]);
  }

  /// Rows from `begin` on, as a chunk or, where that is refused, one by one.
  void run(ScalarDecayFwdChunk chunk, int64_t begin, char* scratch) {
    if (run_rows(chunk, begin, scratch)) return;
    for (int64_t t = begin; t < begin + chunk.rows; ++t) {
      run_rows(make_chunk(t, 1, row_addresses_), t, scratch);
    }
  }

  void end() {
    const auto& final_states = args_.final_states;
    store_state_columns(final_states.state, sequence_.batch_idx, head_, columns_.first,
                        columns_.count, ld_, state_);
    if (columns_.first > 0) return;
    if (has_norm()) {
      store_state_vector(final_states.norm, sequence_.batch_idx, head_, ld_,
                         state_ + columns_.count);
    }
    store_state(final_states.max, sequence_.batch_idx, head_, std::span(&gates_.last_max, 1));
  }

 private:
  static ScalarDecayShape shape_of(const LinearProblem& problem, const LinearPlan& plan,
                                   const ColumnRange& columns) {
    ScalarDecayShape shape = scalar_decay_shape(problem, plan.chunk_size);
    shape.head_dim_v = columns.count;
    return shape;
  }

  /// The task's columns of rows of values.
  ChunkRows value_rows(const HeadRows& rows, int64_t begin) const {
    ChunkRows chunk = chunk_rows(rows, begin);
    if (rows) chunk.data += columns_.first * rows.element_stride;
    return chunk;
  }

  HeadRows rows(const TensorView& tensor, int64_t head) const {
    return timed_rows(problem_, tensor, sequence_, head);
  }

  struct Addresses {
    KeptList<ChunkRows> q, out;
  };

  ScalarDecayFwdChunk make_chunk(int64_t begin, int64_t count, Addresses& addresses) const {
    addresses.q.clear();
    addresses.out.clear();
    for (int64_t member = 0; member < problem_.heads_a_state(); ++member) {
      const int64_t head_out = head_ * problem_.heads_a_state() + member;
      const HeadRows q = rows(args_.inputs.q, problem_.query_head_of(head_out));
      addresses.q.push_back(chunk_rows(q, begin));
      addresses.out.push_back(value_rows(rows(args_.out, head_out), begin));
    }
    ScalarDecayFwdChunk chunk{};
    chunk.shape = &shape_;
    chunk.rows = count;
    chunk.k = chunk_rows(rows(args_.inputs.k, problem_.key_head_of(head_)), begin);
    chunk.v = value_rows(rows(args_.inputs.v, head_), begin);
    chunk.q = addresses.q.data();
    chunk.out = addresses.out.data();
    chunk.num_members = problem_.heads_a_state();
    chunk.beta = chunk_rows(rows(args_.inputs.beta, head_), begin);
    chunk.normalizes = args_.qk_l2norm;
    return chunk;
  }

  bool has_norm() const { return shape_.divisor != ChunkDivisor::kNone; }

  bool run_rows(ScalarDecayFwdChunk chunk, int64_t begin, char* scratch) {
    chunk.gates = gate_rows_.of(gates_, has_input_weight(*problem_.op), begin, chunk.rows);
    chunk.skip = skip_.empty() ? nullptr : skip_.data();
    chunk.state = state_;
    chunk.has_state = has_state_;
    chunk.scratch = scratch;
    const bool is_done = operands_.fwd_chunk(chunk);
    has_state_ = has_state_ || is_done;
    return is_done;
  }

  const LinearProblem& problem_;
  const LinearArgs& args_;
  const LinearSequence& sequence_;
  int64_t head_;
  ColumnRange columns_;
  ScalarDecayShape shape_;
  const ScalarDecayOperandKernels& operands_;
  int64_t ld_;
  ScalarGates gates_;
  ChunkGateRows gate_rows_;
  KeptList<float> skip_;
  std::array<Addresses, 2> addresses_;
  Addresses row_addresses_;
  size_t turn_ = 0;
  float* state_ = nullptr;
  bool has_state_ = false;
};

/// Neighbouring states of one sequence, chunk by chunk in turns: their rows lie side by side, and
/// come from memory together.
void run_streams(KeptList<FwdStream>& streams, const LinearSequence& sequence, int64_t max_rows,
                 int64_t state_floats, const FwdMemory& memory) {
  for (size_t i = 0; i < streams.size(); ++i) {
    streams[i].begin(memory.states + static_cast<int64_t>(i) * state_floats);
  }
  const auto chunk_of = [&](size_t i, int64_t begin) {
    return streams[i].make_chunk(begin, std::min(max_rows, sequence.length - begin));
  };
  ScalarDecayFwdChunk next{};
  if (sequence.length > 0) next = chunk_of(0, 0);
  for (int64_t begin = 0; begin < sequence.length; begin += max_rows) {
    for (size_t i = 0; i < streams.size(); ++i) {
      ScalarDecayFwdChunk chunk = next;
      const bool is_last = i + 1 == streams.size();
      const int64_t next_begin = is_last ? begin + max_rows : begin;
      if (next_begin < sequence.length) {
        next = chunk_of(is_last ? 0 : i + 1, next_begin);
        chunk.next = &next;
      }
      streams[i].run(chunk, begin, memory.scratch);
    }
  }
  for (FwdStream& stream : streams) stream.end();
}

/// Columns of which a part of a state has a multiple.
constexpr int64_t kPartColumns = 64;

/// States of a task: as many as leave every worker two tasks.
int64_t group_size(const LinearProblem& problem, int64_t num_streams, int64_t num_workers) {
  return std::clamp<int64_t>(num_streams / (2 * num_workers), 1, max_state_group(problem));
}

/// Most states that a task takes, and the share of the second cache that they may fill.
constexpr int64_t kMaxGroup = 4;
constexpr int64_t kGroupShare = 4;

}  // namespace

int64_t max_state_group(const LinearProblem& problem) {
  const int64_t state_bytes = problem.head_dim * problem.head_dim_v * 4;
  const int64_t fitting = cpu_info().l2_bytes / kGroupShare / state_bytes;
  return std::clamp<int64_t>(std::min(fitting, problem.num_state_heads), 1, kMaxGroup);
}

int64_t column_parts(int64_t num_columns, int64_t num_streams, int64_t num_workers) {
  if (num_streams == 0) return 1;
  return std::clamp<int64_t>(ceil_div(num_workers, num_streams), 1,
                             ceil_div(num_columns, kPartColumns));
}

ColumnRange column_part(int64_t num_columns, int64_t num_parts, int64_t part) {
  const int64_t columns = ceil_div(ceil_div(num_columns, kPartColumns), num_parts) * kPartColumns;
  const int64_t first = std::min(part * columns, num_columns);
  return {first, std::min(columns, num_columns - first)};
}

double scalar_decay_work(const LinearProblem& problem) {
  const auto rows = static_cast<double>(problem.num_rows * problem.num_out_heads);
  return rows * static_cast<double>(2 * problem.head_dim * problem.head_dim_v +
                                    kChunkRows * (problem.head_dim + problem.head_dim_v) / 2);
}

LinearPlan plan_scalar_decay_fwd(const IsaEntry& isa, const LinearProblem& problem) {
  LinearPlan plan;
  plan.implementation = isa_name(isa.isa);
  plan.chunk_size = chunk_rows_of(problem);
  plan.num_tasks = problem.batch_size * problem.num_state_heads;
  WorkspaceCursor cursor;
  FwdMemory(isa, problem, scalar_decay_shape(problem, plan.chunk_size), cursor);
  plan.bytes_a_worker = cursor.used();
  return plan;
}

void launch_scalar_decay_fwd(const IsaEntry& isa, const LinearProblem& problem,
                             const LinearPlan& plan, const LinearArgs& args,
                             const Context& context) {
  const KeptList<LinearSequence> sequences = linear_sequences(problem, args);
  const std::string_view op = linear_op_name(*problem.op, problem.pass);
  const Context limited = with_workers_for(scalar_decay_work(problem), context);
  const int64_t num_workers = num_workers_of(limited);
  const Workspace workspace(op, context, plan.bytes_for(op, num_workers));
  const ScalarDecayShape shape = scalar_decay_shape(problem, plan.chunk_size);
  const int64_t parts = column_parts(problem.head_dim_v, plan.num_tasks, num_workers);
  const int64_t group = group_size(problem, plan.num_tasks, num_workers);
  const int64_t groups = ceil_div(problem.num_state_heads, group);
  const int64_t state_floats = problem.head_dim * isa.linear->scalar_decay.state_ld(shape);
  parallel_for(limited, problem.batch_size * groups * parts, [&](int64_t task, int worker) {
    WorkspaceCursor cursor(workspace.data() + worker * plan.bytes_a_worker);
    const FwdMemory memory(isa, problem, shape, cursor);
    const ColumnRange columns = column_part(problem.head_dim_v, parts, task % parts);
    if (columns.count == 0) return;
    const auto& sequence = sequences[static_cast<size_t>(task / parts / groups)];
    const int64_t head = task / parts % groups * group;
    KeptList<FwdStream> streams;
    for (int64_t h = head; h < std::min(head + group, problem.num_state_heads); ++h) {
      streams.emplace_back(isa, problem, plan, args, sequence, h, columns);
    }
    run_streams(streams, sequence, plan.chunk_size, state_floats, memory);
  });
}

}  // namespace flashtile::cpu
