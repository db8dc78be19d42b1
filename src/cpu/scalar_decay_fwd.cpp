// SPDX-License-Identifier: Apache-2.0
//
// Forward of scalar decay on the CPU. A task is one state of one sequence, chunk after chunk, or a
// part of its columns where states are fewer than workers. Columns do not depend on each other, so
// the bits are the same; only Q K' is worked out for each part.
#include <algorithm>

#include "core/executor.hpp"
#include "core/workspace.hpp"
#include "cpu/scalar_decay_call.hpp"

namespace flashtile::cpu {

const ScalarDecayOperandKernels& scalar_decay_operands(const ScalarDecayKernels& kernels,
                                                       DType dtype) {
  const bool has_pairs = kernels.bf16_operands.fwd_chunk != nullptr;
  return dtype == DType::kBF16 && has_pairs ? kernels.bf16_operands : kernels.float_operands;
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
  return {max_rows, problem.head_dim, problem.head_dim_v, divisor(),
          static_cast<float>(problem.scale)};
}

namespace {

/// What a worker needs for the rows of one state.
struct FwdMemory {
  float* state;
  char* scratch;

  FwdMemory(const IsaEntry& isa, const LinearProblem& problem, const ScalarDecayShape& shape,
            WorkspaceCursor& cursor) {
    const auto& operands = scalar_decay_operands(isa.linear->scalar_decay, problem.dtype);
    state = cursor.take<float>(problem.head_dim * isa.linear->scalar_decay.state_ld(shape));
    scratch = cursor.take<char>(operands.fwd_scratch_bytes(shape));
  }
};

/// Columns of a state.
struct ColumnRange {
  int64_t first;
  int64_t count;
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
        operands_(scalar_decay_operands(isa.linear->scalar_decay, problem.dtype)),
        ld_(isa.linear->scalar_decay.state_ld(shape_)),
        gates_(scalar_gates(problem, args, sequence, head)),
        gate_rows_(plan.chunk_size) {
    for (int64_t j = 0; args.inputs.D && j < columns.count; ++j) {
      skip_.push_back(static_cast<float>(load_parameter(args.inputs.D, head, columns.first + j)));
    }
  }

  void run(const FwdMemory& memory) {
    const bool has_norm = shape_.divisor != ChunkDivisor::kNone;
    const auto& initial = args_.initial_states;
    has_state_ = bool(initial.state) || (has_norm && initial.norm);
    std::fill_n(memory.state, problem_.head_dim * ld_, 0.0f);
    load_state_columns(initial.state, sequence_.batch_idx, head_, columns_.first, columns_.count,
                       ld_, memory.state);
    if (has_norm) {
      load_state_vector(initial.norm, sequence_.batch_idx, head_, ld_,
                        memory.state + columns_.count);
    }
    for (int64_t begin = 0; begin < sequence_.length; begin += shape_.max_rows) {
      const int64_t end = std::min(begin + shape_.max_rows, sequence_.length);
      if (run_rows(begin, end - begin, memory)) continue;
      for (int64_t t = begin; t < end; ++t) run_rows(t, 1, memory);
    }
    const auto& final_states = args_.final_states;
    store_state_columns(final_states.state, sequence_.batch_idx, head_, columns_.first,
                        columns_.count, ld_, memory.state);
    if (columns_.first > 0) return;
    if (has_norm) {
      store_state_vector(final_states.norm, sequence_.batch_idx, head_, ld_,
                         memory.state + columns_.count);
    }
    store_state(final_states.max, sequence_.batch_idx, head_, {gates_.last_max});
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

  bool run_rows(int64_t begin, int64_t count, const FwdMemory& memory) {
    q_.clear();
    out_.clear();
    for (int64_t member = 0; member < problem_.heads_a_state(); ++member) {
      const int64_t head_out = head_ * problem_.heads_a_state() + member;
      q_.push_back(chunk_rows(rows(args_.inputs.q, problem_.query_head_of(head_out)), begin));
      out_.push_back(value_rows(rows(args_.out, head_out), begin));
    }
    const ScalarDecayFwdChunk chunk{
        &shape_,
        count,
        chunk_rows(rows(args_.inputs.k, problem_.key_head_of(head_)), begin),
        value_rows(rows(args_.inputs.v, head_), begin),
        q_.data(),
        out_.data(),
        problem_.heads_a_state(),
        gate_rows_.of(gates_, has_input_weight(*problem_.op), begin, count),
        skip_.empty() ? nullptr : skip_.data(),
        std::min(shape_.max_rows, sequence_.length - begin - count),
        memory.state,
        has_state_,
        memory.scratch};
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
  std::vector<float> skip_;
  std::vector<ChunkRows> q_, out_;
  bool has_state_ = false;
};

/// Columns of which a part of a state has a multiple.
constexpr int64_t kPartColumns = 64;

/// Into how many parts each state falls, so that all workers have something to do.
int64_t column_parts(int64_t head_dim_v, int64_t num_streams, int64_t num_workers) {
  if (num_streams == 0) return 1;
  return std::clamp<int64_t>(ceil_div(num_workers, num_streams), 1,
                             ceil_div(head_dim_v, kPartColumns));
}

}  // namespace

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
  const std::vector<LinearSequence> sequences = linear_sequences(problem, args);
  const std::string_view op = linear_op_name(*problem.op, problem.pass);
  const Context limited = with_workers_for(scalar_decay_work(problem), context);
  const int64_t num_workers = num_workers_of(limited);
  const Workspace workspace(op, context, plan.bytes_for(op, num_workers));
  const ScalarDecayShape shape = scalar_decay_shape(problem, plan.chunk_size);
  const int64_t parts = column_parts(problem.head_dim_v, plan.num_tasks, num_workers);
  const int64_t columns_a_part =
      ceil_div(ceil_div(problem.head_dim_v, kPartColumns), parts) * kPartColumns;
  parallel_for(limited, plan.num_tasks * parts, [&](int64_t task, int worker) {
    WorkspaceCursor cursor(workspace.data() + worker * plan.bytes_a_worker);
    const FwdMemory memory(isa, problem, shape, cursor);
    const int64_t stream = task / parts;
    const int64_t first = task % parts * columns_a_part;
    const int64_t count = std::min(columns_a_part, problem.head_dim_v - first);
    if (count <= 0) return;
    const auto& sequence = sequences[static_cast<size_t>(stream / problem.num_state_heads)];
    FwdStream(isa, problem, plan, args, sequence, stream % problem.num_state_heads, {first, count})
        .run(memory);
  });
}

}  // namespace flashtile::cpu
