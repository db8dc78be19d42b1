// SPDX-License-Identifier: Apache-2.0
//
// Backward of vector decay on the CPU. A task is one state of one sequence: forward over its rows
// for dQ, then backward for dK, dV and the gradient of decays; or some strips of its key and value
// dimensions where states are fewer than workers, with the same bits.
#include <algorithm>

#include "core/executor.hpp"
#include "cpu/recurrent_call.hpp"
#include "ops/linear/parameter_sums.hpp"

namespace flashtile::cpu {
namespace {

struct RecurrentBwdMemory {
  float* state;  ///< strips
  float* dstate_transposed;
  float* dstate;
  float* rows;             ///< a state by rows, on the way from and to the caller
  float* transposed_rows;  ///< likewise
  float* query_sums;       ///< head_dim for each row of the sequence
  double* passing;
  double* dbonus;
  char* scratch;

  RecurrentBwdMemory(const IsaEntry& isa, const LinearProblem& problem, int64_t max_rows,
                     WorkspaceCursor& cursor) {
    const RecurrentKernels& kernels = isa.linear->recurrent;
    const int64_t keys = strip_columns(kernels, problem.head_dim);
    const int64_t values = strip_columns(kernels, problem.head_dim_v);
    state = cursor.take<float>(problem.head_dim_v * keys);
    dstate_transposed = cursor.take<float>(problem.head_dim_v * keys);
    dstate = cursor.take<float>(problem.head_dim * values);
    rows = cursor.take<float>(problem.head_dim * values);
    transposed_rows = cursor.take<float>(problem.head_dim_v * keys);
    query_sums = cursor.take<float>(problem.max_seqlen * problem.head_dim);
    passing = cursor.take<double>(problem.head_dim);
    dbonus = cursor.take<double>(problem.head_dim);
    scratch = cursor.take<char>(kernels.bwd_scratch_bytes(
        max_rows, problem.head_dim, problem.head_dim_v, problem.heads_a_state()));
  }
};

/// One state of one sequence.
class RecurrentBwdStream {
 public:
  RecurrentBwdStream(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                     const LinearArgs& args, const LinearSequence& sequence, int64_t head,
                     const RecurrentBwdMemory& memory)
      : kernels_(isa.linear->recurrent),
        problem_(problem),
        args_(args),
        sequence_(sequence),
        head_(head),
        max_rows_(plan.chunk_size),
        ld_k_(strip_columns(kernels_, problem.head_dim)),
        ld_v_(strip_columns(kernels_, problem.head_dim_v)),
        memory_(memory),
        bonus_(bonus_of(problem, args, head)) {}

  void run(const StripRange& keys, const StripRange& values, ParameterSums& sums) {
    keys_ = keys;
    values_ = values;
    std::fill_n(memory_.dbonus, problem_.head_dim, 0.0);
    load(args_.initial_states.state, memory_.state, nullptr);
    load(args_.dfinal_states.state, memory_.dstate_transposed, memory_.dstate);
    for (int64_t begin = 0; begin < sequence_.length; begin += max_rows_) {
      RecurrentBwdChunk chunk = make_chunk(begin);
      chunk.next_begin = chunk.rows;
      chunk.next_end = std::min(chunk.rows + max_rows_, sequence_.length - begin);
      kernels_.bwd_queries(chunk);
    }
    RecurrentBwdChunk ends{};
    ends.keys = keys;
    ends.head_dim = problem_.head_dim;
    ends.head_dim_v = problem_.head_dim_v;
    ends.state = memory_.state;
    ends.dstate_transposed = memory_.dstate_transposed;
    ends.passing = memory_.passing;
    kernels_.state_dots(ends);
    for (int64_t n = ceil_div(sequence_.length, max_rows_) - 1; n >= 0; --n) {
      RecurrentBwdChunk chunk = make_chunk(n * max_rows_);
      if (n > 0) chunk.next_begin = -max_rows_;
      kernels_.bwd_keys(chunk);
    }
    const int64_t width = kernels_.strip_width;
    const int64_t column = values.first * width;
    const int64_t columns = std::min(values.count * width, problem_.head_dim_v - column);
    if (columns > 0) {
      kernels_.store_strips(memory_.dstate + column * problem_.head_dim, problem_.head_dim,
                            problem_.head_dim_v, values.first, values.count, memory_.rows, ld_v_);
      store_state_columns(args_.dinitial_states.state, sequence_.batch_idx, head_, column, columns,
                          ld_v_, memory_.rows + column);
    }
    const int64_t end = std::min((keys.first + keys.count) * width, problem_.head_dim);
    for (int64_t i = keys.first * width; i < end && !bonus_.empty(); ++i) {
      sums.add(args_.gradients.u_bonus, sequence_.batch_idx, head_, i, memory_.dbonus[i]);
    }
  }

 private:
  /// A state or its gradient as strips of the transposed one, and of itself where they are wanted.
  void load(const TensorView& tensor, float* transposed, float* straight) const {
    std::fill_n(memory_.rows, problem_.head_dim * ld_v_, 0.0f);
    load_state_columns(tensor, sequence_.batch_idx, head_, 0, problem_.head_dim_v, ld_v_,
                       memory_.rows);
    for (int64_t j = 0; j < problem_.head_dim_v; ++j) {
      for (int64_t i = 0; i < problem_.head_dim; ++i) {
        memory_.transposed_rows[j * ld_k_ + i] = memory_.rows[i * ld_v_ + j];
      }
    }
    kernels_.load_strips(memory_.transposed_rows, ld_k_, problem_.head_dim_v, problem_.head_dim, 0,
                         ld_k_ / kernels_.strip_width, transposed);
    if (straight == nullptr) return;
    kernels_.load_strips(memory_.rows, ld_v_, problem_.head_dim, problem_.head_dim_v, 0,
                         ld_v_ / kernels_.strip_width, straight);
  }

  ChunkRows rows(const TensorView& tensor, int64_t head, int64_t begin) const {
    return chunk_rows(timed_rows(problem_, tensor, sequence_, head), begin);
  }

  RecurrentBwdChunk make_chunk(int64_t begin) {
    const LinearTensors& in = args_.inputs;
    const LinearTensors& gradients = args_.gradients;
    q_.clear();
    dout_.clear();
    dq_.clear();
    for (int64_t member = 0; member < problem_.heads_a_state(); ++member) {
      const int64_t head_out = head_ * problem_.heads_a_state() + member;
      q_.push_back(rows(in.q, problem_.query_head_of(head_out), begin));
      dout_.push_back(rows(args_.dout, head_out, begin));
      dq_.push_back(rows(gradients.q, problem_.query_head_of(head_out), begin));
    }
    RecurrentBwdChunk chunk{};
    chunk.reads_before = problem_.op->reads_before;
    chunk.scale = static_cast<float>(problem_.scale);
    chunk.begins_sequence = begin == 0;
    chunk.ends_sequence = begin + max_rows_ >= sequence_.length;
    chunk.rows = std::min(max_rows_, sequence_.length - begin);
    chunk.max_rows = max_rows_;
    chunk.head_dim = problem_.head_dim;
    chunk.head_dim_v = problem_.head_dim_v;
    chunk.keys = keys_;
    chunk.values = values_;
    chunk.q = q_.data();
    chunk.dout = dout_.data();
    chunk.num_members = problem_.heads_a_state();
    chunk.k = rows(in.k, problem_.key_head_of(head_), begin);
    chunk.v = rows(in.v, head_, begin);
    chunk.g = rows(in.g, head_, begin);
    chunk.bonus = bonus_.empty() ? nullptr : bonus_.data();
    chunk.state = memory_.state;
    chunk.dstate_transposed = memory_.dstate_transposed;
    chunk.dstate = memory_.dstate;
    chunk.dq = dq_.data();
    chunk.dk = rows(gradients.k, problem_.key_head_of(head_), begin);
    chunk.dv = rows(gradients.v, head_, begin);
    chunk.dg = rows(gradients.g, head_, begin);
    chunk.query_sums = memory_.query_sums + begin * problem_.head_dim;
    chunk.passing = memory_.passing;
    chunk.dbonus = memory_.dbonus;
    chunk.scratch = memory_.scratch;
    return chunk;
  }

  const RecurrentKernels& kernels_;
  const LinearProblem& problem_;
  const LinearArgs& args_;
  const LinearSequence& sequence_;
  int64_t head_;
  int64_t max_rows_;
  int64_t ld_k_, ld_v_;
  const RecurrentBwdMemory& memory_;
  std::vector<float> bonus_;
  StripRange keys_{}, values_{};
  std::vector<ChunkRows> q_, dout_, dq_;
};

/// Part n of `parts` of the strips of a dimension.
StripRange part_of_strips(const RecurrentKernels& kernels, int64_t dim, int64_t n, int64_t parts) {
  const int64_t strips = ceil_div(dim, kernels.strip_width);
  const int64_t begin = n * strips / parts;
  return {begin, (n + 1) * strips / parts - begin};
}

}  // namespace

LinearPlan plan_vector_decay_bwd(const IsaEntry& isa, const LinearProblem& problem) {
  return plan_states<RecurrentBwdMemory>(isa, problem);
}

void launch_vector_decay_bwd(const IsaEntry& isa, const LinearProblem& problem,
                             const LinearPlan& plan, const LinearArgs& args,
                             const Context& context) {
  ParameterSums sums(problem, args);
  const std::vector<LinearSequence> sequences = linear_sequences(problem, args);
  const std::string_view op = linear_op_name(*problem.op, problem.pass);
  const double work = static_cast<double>(problem.num_rows * problem.num_out_heads) *
                      static_cast<double>(9 * problem.head_dim * problem.head_dim_v);
  const Context limited = with_workers_for(work, context);
  const int64_t num_workers = num_workers_of(limited);
  const Workspace workspace(op, context, plan.bytes_for(op, num_workers));
  const RecurrentKernels& kernels = isa.linear->recurrent;
  const int64_t num_strips =
      ceil_div(std::max(problem.head_dim, problem.head_dim_v), kernels.strip_width);
  const int64_t parts =
      plan.num_tasks == 0 ? 1 : std::clamp<int64_t>(num_workers / plan.num_tasks, 1, num_strips);
  parallel_for(limited, plan.num_tasks * parts, [&](int64_t task, int worker) {
    WorkspaceCursor cursor(workspace.data() + worker * plan.bytes_a_worker);
    const RecurrentBwdMemory memory(isa, problem, plan.chunk_size, cursor);
    const int64_t stream = task / parts;
    const auto& sequence = sequences[static_cast<size_t>(stream / problem.num_state_heads)];
    RecurrentBwdStream(isa, problem, plan, args, sequence, stream % problem.num_state_heads, memory)
        .run(part_of_strips(kernels, problem.head_dim, task % parts, parts),
             part_of_strips(kernels, problem.head_dim_v, task % parts, parts), sums);
  });
  sums.store();
}

}  // namespace flashtile::cpu
