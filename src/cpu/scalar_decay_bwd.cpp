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
#include <initializer_list>

#include "core/executor.hpp"
#include "cpu/scalar_decay_bwd_heads.hpp"

namespace flashtile::cpu {
namespace {

/// A task: its chunks in their order.
class BwdStream : private BwdHeads {
 public:
  using BwdHeads::BwdHeads;

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
      go_back_chunk(i, keys, chunk, work);
    }
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
