// SPDX-License-Identifier: Apache-2.0
//
// Backward of vector decay on the CPU. A task is some states of one sequence: forward over their
// rows for dQ, then backward for dK, dV and the gradient of decays, a chunk of each in turn, as
// rows of neighbours lie side by side; or some strips of the key and value dimensions of one state
// where states are fewer than workers, with the same bits.
#include <algorithm>
#include <array>

#include "core/executor.hpp"
#include "cpu/recurrent_call.hpp"
#include "cpu/scalar_decay_call.hpp"
#include "ops/linear/parameter_sums.hpp"

namespace flashtile::cpu {
namespace {

/// Of the rows of some states that a task takes in turn, what is kept for all of a sequence has
/// this much memory.
constexpr int64_t kKeptBytes = int64_t{12} << 20;

/// States that are kept of a sequence, in bytes.
int64_t kept_state_bytes(const IsaEntry& isa, const LinearProblem& problem) {
  const VectorDecayPairKernels* pairs = vector_decay_pairs(isa, problem);
  if (pairs == nullptr) return 0;
  return num_kept_states(problem.max_seqlen) * 2 *
         pairs->kept_elements(problem.head_dim, problem.head_dim_v);
}

/// Most states of a task.
int64_t max_group(const IsaEntry& isa, const LinearProblem& problem) {
  const int64_t kept = std::max<int64_t>(
      1, problem.max_seqlen * problem.head_dim * 4 + kept_state_bytes(isa, problem));
  return std::clamp<int64_t>(kKeptBytes / kept, 1, max_state_group(problem));
}

/// What belongs to one state of a task.
struct RecurrentStateMemory {
  float* state;  ///< strips
  float* dstate_transposed;
  float* dstate;
  float* query_sums;  ///< head_dim for each row of the sequence
  double* passing;
  double* dbonus;
  uint16_t* kept;  ///< states before some chunks

  RecurrentStateMemory(const IsaEntry& isa, const LinearProblem& problem, WorkspaceCursor& cursor) {
    const RecurrentKernels& kernels = isa.linear->recurrent;
    const int64_t keys = strip_columns(kernels, problem.head_dim);
    const int64_t values = strip_columns(kernels, problem.head_dim_v);
    state = cursor.take<float>(problem.head_dim_v * keys);
    dstate_transposed = cursor.take<float>(problem.head_dim_v * keys);
    dstate = cursor.take<float>(problem.head_dim * values);
    query_sums = cursor.take<float>(problem.max_seqlen * problem.head_dim);
    passing = cursor.take<double>(problem.head_dim);
    dbonus = cursor.take<double>(problem.head_dim);
    kept = cursor.take<uint16_t>(kept_state_bytes(isa, problem) / 2);
  }
};

struct RecurrentBwdMemory {
  KeptList<RecurrentStateMemory> states;
  float* rows;             ///< a state by rows, on the way from and to the caller
  float* transposed_rows;  ///< likewise
  char* scratch;
  const VectorDecayPairKernels* pairs;  ///< null: all is done row by row
  char* pairs_scratch = nullptr;

  RecurrentBwdMemory(const IsaEntry& isa, const LinearProblem& problem, int64_t max_rows,
                     WorkspaceCursor& cursor) {
    const RecurrentKernels& kernels = isa.linear->recurrent;
    for (int64_t n = 0; n < max_group(isa, problem); ++n) states.emplace_back(isa, problem, cursor);
    rows = cursor.take<float>(problem.head_dim * strip_columns(kernels, problem.head_dim_v));
    transposed_rows =
        cursor.take<float>(problem.head_dim_v * strip_columns(kernels, problem.head_dim));
    scratch = cursor.take<char>(kernels.bwd_scratch_bytes(
        max_rows, problem.head_dim, problem.head_dim_v, problem.heads_a_state()));
    pairs = vector_decay_pairs(isa, problem);
    if (pairs == nullptr) return;
    pairs_scratch = cursor.take<char>(
        pairs->bwd_scratch_bytes(problem.head_dim, problem.head_dim_v, problem.heads_a_state()));
  }
};

/// Some strips of one state of one sequence.
class RecurrentBwdStream : public StripedState {
 public:
  RecurrentBwdStream(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                     const LinearArgs& args, const LinearSequence& sequence, int64_t head,
                     const StripRange& keys, const StripRange& values,
                     const RecurrentBwdMemory& shared, const RecurrentStateMemory& memory)
      : StripedState(isa, problem, plan, args, sequence, head),
        shared_(shared),
        memory_(memory),
        bonus_(bonus_of(problem, args, head)),
        keys_(keys),
        values_(values) {}

  void begin() {
    std::fill_n(memory_.dbonus, problem_.head_dim, 0.0);
    load_keys(args_.initial_states.state, memory_.state);
    load_keys(args_.dfinal_states.state, memory_.dstate_transposed);
    load_value_strips(args_.dfinal_states.state, value_strips(), shared_.rows, memory_.dstate);
  }

  /// Chunk n. The lists that it points to are there until the next call but one.
  RecurrentBwdChunk make_chunk(int64_t n) {
    turn_ = 1 - turn_;
    return make_chunk(n * max_rows_, addresses_[turn_]);
  }

  /// Between the chunks forward and back.
  void turn_back() {
    RecurrentBwdChunk ends{};
    ends.keys = keys_;
    ends.head_dim = problem_.head_dim;
    ends.head_dim_v = problem_.head_dim_v;
    ends.state = memory_.state;
    ends.dstate_transposed = memory_.dstate_transposed;
    ends.passing = memory_.passing;
    kernels_.state_dots(ends);
  }

  void end(ParameterSums& sums) const {
    const int64_t width = kernels_.strip_width;
    if (values_.count > 0) {
      store_value_strips(args_.dinitial_states.state, values_, shared_.rows,
                         memory_.dstate + values_.first * width * problem_.head_dim);
    }
    const int64_t end = std::min((keys_.first + keys_.count) * width, problem_.head_dim);
    for (int64_t i = keys_.first * width; i < end && !bonus_.empty(); ++i) {
      sums.add(args_.gradients.u_bonus, sequence_.batch_idx, head_, i, memory_.dbonus[i]);
    }
  }

 private:
  void load_keys(const TensorView& tensor, float* to) const {
    load_key_strips(tensor, key_strips(), shared_.rows, shared_.transposed_rows, to);
  }

  /// Where the state before a row is kept; null where it is not.
  uint16_t* kept_state(int64_t begin) const {
    const int64_t n = kept_state_before(begin);
    if (shared_.pairs == nullptr || n < 0) return nullptr;
    return memory_.kept + n * shared_.pairs->kept_elements(problem_.head_dim, problem_.head_dim_v);
  }

  struct Addresses {
    KeptList<ChunkRows> q, dout, dq;
  };

  RecurrentBwdChunk make_chunk(int64_t begin, Addresses& addresses) const {
    const LinearTensors& in = args_.inputs;
    const LinearTensors& gradients = args_.gradients;
    addresses.q.clear();
    addresses.dout.clear();
    addresses.dq.clear();
    for (int64_t member = 0; member < problem_.heads_a_state(); ++member) {
      const int64_t head_out = head_ * problem_.heads_a_state() + member;
      addresses.q.push_back(rows(in.q, problem_.query_head_of(head_out), begin));
      addresses.dout.push_back(rows(args_.dout, head_out, begin));
      addresses.dq.push_back(rows(gradients.q, problem_.query_head_of(head_out), begin));
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
    chunk.q = addresses.q.data();
    chunk.dout = addresses.dout.data();
    chunk.num_members = problem_.heads_a_state();
    chunk.k = rows(in.k, problem_.key_head_of(head_), begin);
    chunk.v = rows(in.v, head_, begin);
    chunk.g = rows(in.g, head_, begin);
    chunk.bonus = bonus_.empty() ? nullptr : bonus_.data();
    chunk.state = memory_.state;
    chunk.dstate_transposed = memory_.dstate_transposed;
    chunk.dstate = memory_.dstate;
    chunk.dq = addresses.dq.data();
    chunk.dk = rows(gradients.k, problem_.key_head_of(head_), begin);
    chunk.dv = rows(gradients.v, head_, begin);
    chunk.dg = rows(gradients.g, head_, begin);
    chunk.query_sums = memory_.query_sums + begin * problem_.head_dim;
    chunk.passing = memory_.passing;
    chunk.dbonus = memory_.dbonus;
    chunk.scratch = shared_.scratch;
    chunk.pairs = shared_.pairs;
    chunk.pairs_scratch = shared_.pairs_scratch;
    chunk.kept_before = kept_state(begin);
    chunk.kept_behind = chunk.ends_sequence ? nullptr : kept_state(begin + max_rows_);
    return chunk;
  }

  const RecurrentBwdMemory& shared_;
  const RecurrentStateMemory& memory_;
  KeptList<float> bonus_;
  StripRange keys_, values_;
  std::array<Addresses, 2> addresses_;
  size_t turn_ = 0;
};

/// A chunk of each state in turn, each told which one follows.
template <class Kernel>
void run_turns(KeptList<RecurrentBwdStream>& streams, bool is_back, const Kernel& kernel) {
  const auto count = static_cast<int64_t>(streams.size());
  const int64_t num_chunks = streams[0].num_chunks();
  const auto chunk_at = [&](int64_t turn) {
    const int64_t n = turn / count;
    return streams[static_cast<size_t>(turn % count)].make_chunk(is_back ? num_chunks - 1 - n : n);
  };
  RecurrentBwdChunk next{};
  if (num_chunks > 0) next = chunk_at(0);
  for (int64_t turn = 0; turn < num_chunks * count; ++turn) {
    RecurrentBwdChunk chunk = next;
    if (turn + 1 < num_chunks * count) {
      next = chunk_at(turn + 1);
      chunk.next = &next;
    }
    kernel(chunk);
  }
}

void run_streams(KeptList<RecurrentBwdStream>& streams, const RecurrentKernels& kernels,
                 ParameterSums& sums) {
  for (RecurrentBwdStream& stream : streams) stream.begin();
  run_turns(streams, /*is_back=*/false, kernels.bwd_queries);
  for (RecurrentBwdStream& stream : streams) stream.turn_back();
  run_turns(streams, /*is_back=*/true, kernels.bwd_keys);
  for (const RecurrentBwdStream& stream : streams) stream.end(sums);
}

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
  const KeptList<LinearSequence> sequences = linear_sequences(problem, args);
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
  const int64_t group =
      std::clamp<int64_t>(plan.num_tasks / (2 * num_workers), 1, max_group(isa, problem));
  const int64_t groups = ceil_div(problem.num_state_heads, group);
  parallel_for(limited, problem.batch_size * groups * parts, [&](int64_t task, int worker) {
    WorkspaceCursor cursor(workspace.data() + worker * plan.bytes_a_worker);
    const RecurrentBwdMemory memory(isa, problem, plan.chunk_size, cursor);
    const auto& sequence = sequences[static_cast<size_t>(task / parts / groups)];
    const StripRange keys = part_of_strips(kernels, problem.head_dim, task % parts, parts);
    const StripRange values = part_of_strips(kernels, problem.head_dim_v, task % parts, parts);
    const int64_t first = task / parts % groups * group;
    KeptList<RecurrentBwdStream> streams;
    for (int64_t head = first; head < std::min(first + group, problem.num_state_heads); ++head) {
      streams.emplace_back(isa, problem, plan, args, sequence, head, keys, values, memory,
                           memory.states[static_cast<size_t>(head - first)]);
    }
    run_streams(streams, kernels, sums);
  });
  sums.store();
}

}  // namespace flashtile::cpu
