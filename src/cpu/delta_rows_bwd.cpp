// SPDX-License-Identifier: Apache-2.0
//
// Backward of the delta family on the CPU, row by row. A task is a key head of one sequence, or two
// in turns, with all states that read them; where these are fewer than workers, parts of a state's
// value dimensions and then parts of its key dimensions are tasks. What a strip gives does not
// depend on that.
#include <algorithm>
#include <span>
#include <vector>

#include "core/executor.hpp"
#include "cpu/recurrent_call.hpp"

namespace flashtile::cpu {
namespace {

/// What two workers keep of all rows of a sequence where they take key heads in turns, a chunk of
/// each: less than the 32 MiB from which on malloc gives memory back, and gets it page by page.
constexpr int64_t kGroupedBytes = int64_t{24} << 20;
/// Most key heads of a task; what more of them keep does not stay in a cache.
constexpr int64_t kMaxKeyGroup = 2;

int64_t max_key_group(const LinearProblem& problem, int64_t num_workers) {
  const int64_t keys = problem.head_dim * (problem.states_a_key() > 1 ? 4 : 2);
  const int64_t kept = problem.max_seqlen * (keys + 2 * problem.head_dim_v) * 4;
  const int64_t bytes = num_workers == 1 ? kGroupedBytes : kGroupedBytes / 2;
  const int64_t most = std::min(kMaxKeyGroup, std::max<int64_t>(1, problem.num_key_heads));
  return std::clamp<int64_t>(bytes / std::max<int64_t>(1, kept), 1, most);
}

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

/// What a worker needs to go over some strips of one state.
struct DeltaStripMemory {
  float* state;   ///< strips
  float* dstate;  ///< of key passes; those of value passes have one at a time
  float* rows;    ///< by rows, on the way from and to the caller; for all states of a worker
  float* transposed_rows;
  char* scratch;
};

/// What one of `num_workers` workers needs for the states of a task.
struct DeltaBwdMemory {
  std::vector<DeltaRowMemory> rows;
  std::vector<DeltaStripMemory> strips;

  DeltaBwdMemory(const IsaEntry& isa, const LinearProblem& problem, int64_t max_rows,
                 WorkspaceCursor& cursor, int64_t num_workers = 2) {
    const RecurrentKernels& kernels = isa.linear->recurrent;
    const int64_t by_keys = problem.head_dim_v * strip_columns(kernels, problem.head_dim);
    const int64_t by_values = problem.head_dim * strip_columns(kernels, problem.head_dim_v);
    DeltaStripMemory shared{};
    shared.rows = cursor.take<float>(by_values);
    shared.transposed_rows = cursor.take<float>(by_keys);
    shared.scratch = cursor.take<char>(
        kernels.delta_bwd.scratch_bytes(max_rows, problem.head_dim, problem.head_dim_v));
    for (int64_t n = 0; n < max_key_group(problem, num_workers); ++n) {
      rows.emplace_back(isa, problem, cursor);
      strips.push_back(shared);
      strips.back().state = cursor.take<float>(std::max(by_keys, by_values));
      strips.back().dstate = cursor.take<float>(by_keys);
    }
  }
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

  void begin_values(const StripRange& strips, const DeltaStripMemory& memory) const {
    load_values(args_.initial_states.state, strips, memory);
  }
  void turn_values_back(const StripRange& strips, const DeltaStripMemory& memory) const {
    load_values(args_.dfinal_states.state, strips, memory);
  }
  void end_values(const StripRange& strips, const DeltaStripMemory& memory) const {
    const int64_t first = strips.first * kernels_.strip_width;
    kernels_.store_strips(memory.state, problem_.head_dim, problem_.head_dim_v, strips.first,
                          strips.count, memory.rows, ld_v_);
    store_state_columns(args_.dinitial_states.state, sequence_.batch_idx, head_, first,
                        std::min(strips.count * kernels_.strip_width, problem_.head_dim_v - first),
                        ld_v_, memory.rows + first);
  }

  void begin_keys(const StripRange& strips, const DeltaStripMemory& memory) const {
    load_keys(args_.initial_states.state, strips, memory, memory.state);
  }
  void turn_keys_back(const StripRange& strips, const DeltaStripMemory& memory) const {
    load_keys(args_.dfinal_states.state, strips, memory, memory.dstate);
    kernels_.delta_bwd.state_dots(make_chunk(0, strips, memory.dstate, memory), memory.state,
                                  memory.dstate);
  }

  /// Chunk n of what is left, once all strips are done.
  void finish_state(int64_t n, const DeltaStripMemory& memory) const {
    kernels_.delta_bwd.finish_state(make_chunk(n, {0, 0}, nullptr, memory));
  }
  /// Likewise, of the last state that shares the key head.
  void finish_keys(int64_t n, const DeltaStripMemory& memory) const {
    kernels_.delta_bwd.finish_keys(make_chunk(n, {0, 0}, nullptr, memory));
  }
  int64_t num_chunks() const { return ceil_div(sequence_.length, max_rows_); }

  /// Chunk n as a pass over `state` takes it.
  DeltaBwdChunk make_chunk(int64_t n, const StripRange& strips, float* state,
                           const DeltaStripMemory& memory) const {
    const int64_t begin = n * max_rows_;
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

 private:
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

  const RecurrentKernels& kernels_;
  const LinearProblem& problem_;
  const LinearArgs& args_;
  const LinearSequence& sequence_;
  int64_t head_;
  int64_t max_rows_;
  int64_t ld_k_, ld_v_;
  const DeltaRowMemory& memory_;
};

/// A state and what a worker goes over it with.
struct DeltaMember {
  DeltaBwdState state;
  DeltaStripMemory memory;
};

/// Calls visit(member, n, chunk) for all chunks of some strips of states of one sequence, a chunk
/// of each in turn, each told which one follows; over gradients in the key passes back.
template <class Visit>
void for_each_turn(std::span<const DeltaMember> members, const StripRange& strips, bool is_back,
                   bool is_dstate, const Visit& visit) {
  const auto count = static_cast<int64_t>(members.size());
  const int64_t num_chunks = members[0].state.num_chunks();
  const auto chunk_idx = [&](int64_t turn) {
    return is_back ? num_chunks - 1 - turn / count : turn / count;
  };
  const auto chunk_at = [&](int64_t turn) {
    const DeltaMember& member = members[static_cast<size_t>(turn % count)];
    float* const state = is_dstate ? member.memory.dstate : member.memory.state;
    return member.state.make_chunk(chunk_idx(turn), strips, state, member.memory);
  };
  for (int64_t turn = 0; turn < num_chunks * count; ++turn) {
    DeltaBwdChunk chunk = chunk_at(turn);
    DeltaBwdChunk next{};
    if (turn + 1 < num_chunks * count) {
      next = chunk_at(turn + 1);
      chunk.next = &next;
    }
    visit(members[static_cast<size_t>(turn % count)], chunk_idx(turn), chunk);
  }
}

/// What each row reads of the states, and what it owes their gradients.
void run_values(const DeltaBwdKernels& kernels, std::span<const DeltaMember> members,
                const StripRange& strips) {
  for (const DeltaMember& member : members) member.state.begin_values(strips, member.memory);
  for_each_turn(members, strips, /*is_back=*/false, /*is_dstate=*/false,
                [&](const DeltaMember&, int64_t, const DeltaBwdChunk& chunk) {
                  kernels.values_forward(chunk);
                });
  for (const DeltaMember& member : members) member.state.turn_values_back(strips, member.memory);
  for_each_turn(members, strips, /*is_back=*/true, /*is_dstate=*/false,
                [&](const DeltaMember&, int64_t, const DeltaBwdChunk& chunk) {
                  kernels.values_backward(chunk);
                });
  for (const DeltaMember& member : members) member.state.end_values(strips, member.memory);
}

/// Gradients of keys, queries and decays; after all of run_values. Calls behind(member, n) after
/// the last pass over chunk n.
template <class Behind>
void run_keys(const DeltaBwdKernels& kernels, std::span<const DeltaMember> members,
              const StripRange& strips, const Behind& behind) {
  for (const DeltaMember& member : members) member.state.begin_keys(strips, member.memory);
  for_each_turn(members, strips, /*is_back=*/false, /*is_dstate=*/false,
                [&](const DeltaMember&, int64_t, const DeltaBwdChunk& chunk) {
                  kernels.keys_forward(chunk);
                });
  for (const DeltaMember& member : members) member.state.turn_keys_back(strips, member.memory);
  for_each_turn(members, strips, /*is_back=*/true, /*is_dstate=*/true,
                [&](const DeltaMember& member, int64_t n, const DeltaBwdChunk& chunk) {
                  kernels.keys_backward(chunk);
                  behind(member, n);
                });
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
      const int64_t group = std::clamp<int64_t>(num_keys / (2 * num_workers), 1,
                                                max_key_group(problem_, num_workers));
      const int64_t groups = ceil_div(problem_.num_key_heads, group);
      parallel_for(context_, problem_.batch_size * groups, [&](int64_t task, int worker) {
        const int64_t first = task % groups * group;
        const int64_t count = std::min(group, problem_.num_key_heads - first);
        run_key_heads(task / groups, first, count, worker);
      });
      return;
    }
    for (int64_t key = 0; key < num_keys; ++key) run_key_together(key, num_workers);
  }

 private:
  DeltaBwdMemory memory_of(int64_t worker) const {
    WorkspaceCursor cursor(memory_ + worker * plan_.bytes_a_worker);
    return {isa_, problem_, plan_.chunk_size, cursor, num_workers_of(context_)};
  }
  const DeltaBwdKernels& kernels() const { return isa_.linear->recurrent.delta_bwd; }

  DeltaBwdState state_of(int64_t sequence, int64_t head, const DeltaRowMemory& rows) const {
    return {isa_, problem_, plan_, args_, sequences_[static_cast<size_t>(sequence)], head, rows};
  }

  /// Neighbouring key heads, by one worker: state n of each in turn.
  void run_key_heads(int64_t sequence, int64_t first, int64_t count, int64_t worker) const {
    const DeltaBwdMemory memory = memory_of(worker);
    const int64_t num_states = problem_.states_a_key();
    for (int64_t n = 0; n < num_states; ++n) {
      std::vector<DeltaMember> members;
      for (int64_t i = 0; i < count; ++i) {
        const auto own = static_cast<size_t>(i);
        members.push_back({state_of(sequence, (first + i) * num_states + n, memory.rows[own]),
                           memory.strips[own]});
      }
      const DeltaBwdState& any = members[0].state;
      run_values(kernels(), members, any.value_strips());
      run_keys(kernels(), members, any.key_strips(), [&](const DeltaMember& member, int64_t chunk) {
        member.state.finish_state(chunk, member.memory);
        if (n + 1 == num_states) member.state.finish_keys(chunk, member.memory);
      });
    }
  }

  /// Calls body(strips, member) for parts of some strips of a state.
  template <class Body>
  void for_each_part(const DeltaBwdState& state, const StripRange& strips, int64_t num_workers,
                     const Body& body) const {
    const int64_t count = ceil_div(strips.count, num_workers);
    parallel_for(context_, ceil_div(strips.count, count), [&](int64_t part, int worker) {
      const int64_t first = strips.first + part * count;
      const int64_t end = strips.first + strips.count;
      const DeltaMember member{state, memory_of(worker).strips[0]};
      body(StripRange{first, std::min(count, end - first)}, member);
    });
  }

  void run_key_together(int64_t key, int64_t num_workers) const {
    const DeltaBwdMemory shared = memory_of(0);
    const int64_t num_states = problem_.states_a_key();
    for (int64_t n = 0; n < num_states; ++n) {
      const int64_t head = key % problem_.num_key_heads * num_states + n;
      const DeltaBwdState state = state_of(key / problem_.num_key_heads, head, shared.rows[0]);
      for_each_part(state, state.value_strips(), num_workers,
                    [&](const StripRange& strips, const DeltaMember& member) {
                      run_values(kernels(), {&member, 1}, strips);
                    });
      for_each_part(state, state.key_strips(), num_workers,
                    [&](const StripRange& strips, const DeltaMember& member) {
                      run_keys(kernels(), {&member, 1}, strips, [](const DeltaMember&, int64_t) {});
                    });
      parallel_for(context_, state.num_chunks(), [&](int64_t chunk, int worker) {
        const DeltaStripMemory memory = memory_of(worker).strips[0];
        state.finish_state(chunk, memory);
        if (n + 1 == num_states) state.finish_keys(chunk, memory);
      });
    }
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
  LinearPlan plan = plan_states<DeltaBwdMemory>(isa, problem);
  if (plan.num_tasks == 0) return plan;
  // One worker may keep more than each of several.
  WorkspaceCursor cursor;
  DeltaBwdMemory(isa, problem, plan.chunk_size, cursor, 1);
  plan.bytes = cursor.used() - plan.bytes_a_worker;
  return plan;
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
