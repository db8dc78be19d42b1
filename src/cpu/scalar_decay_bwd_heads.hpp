// SPDX-License-Identifier: Apache-2.0
//
// The states of a task of the backward of scalar decay, and what is done with one chunk of one of
// them: as products, or row by row where these would mix up what is not finite. In which order is
// in scalar_decay_bwd.cpp.
#pragma once

#include <cstring>
#include <span>

#include "cpu/scalar_decay_bwd_memory.hpp"
#include "ops/linear/parameter_sums.hpp"

namespace flashtile::cpu {

/// A state of a task, and a chunk of its rows.
struct Turn {
  size_t i;
  int64_t chunk;
};

/// All states that read some neighbouring key heads of one sequence.
class BwdHeads {
 public:
  /// With the memory of one worker, or of all of them.
  BwdHeads(const IsaEntry& isa, const LinearProblem& problem, const BwdSizes& sizes,
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

  /// The keys of a state's gradient from that behind a chunk to that before it.
  void go_back_chunk(size_t i, const ColumnRange& keys, int64_t chunk, BwdWork& work) {
    const int64_t begin = chunk_begin(chunk);
    const int64_t end = chunk_end(chunk);
    const bool may_be_whole = heads_[i].is_whole[static_cast<size_t>(chunk)] != 0;
    if (may_be_whole && go_back(i, keys, chunk, begin, end, work)) return;
    for (int64_t t = end - 1; t >= begin; --t) go_back(i, keys, chunk, t, t + 1, work);
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

 protected:
  const LinearProblem& problem_;
  const BwdSizes& sizes_;
  const LinearArgs& args_;
  const LinearSequence& sequence_;
  std::span<const BwdMemory> memories_;
  const BwdMemory& memory_;  ///< the first one's, which has what all share
  const ScalarDecayOperandKernels& operands_;
  int64_t num_chunks_;
  KeptList<BwdHead> heads_;

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
    added.dskip.assign(static_cast<size_t>(num_chunks_) * added.skip.size(), 0.0);
    added.is_whole.assign(static_cast<size_t>(num_chunks_), 1);
    heads_.push_back(std::move(added));
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

  /// The keys of a state's gradient from that behind rows [begin, end) to that before them.
  bool go_back(size_t i, const ColumnRange& keys, int64_t chunk_idx, int64_t begin, int64_t end,
               BwdWork& work) {
    ScalarDecayBwdChunk chunk = make_full_chunk(i, chunk_idx, begin, end, work.turns[0], work);
    set_gates(heads_[i], begin, chunk, work);
    chunk.dstate = dstate(i);
    chunk.part = keys;
    return operands_.bwd_dstate(chunk);
  }

  bool find_divisors_of(size_t i, int64_t chunk_idx, int64_t begin, int64_t end, float* state,
                        BwdWork& work) {
    ScalarDecayBwdChunk chunk = make_full_chunk(i, chunk_idx, begin, end, work.turns[0], work);
    set_gates(heads_[i], begin, chunk, work);
    chunk.state = state;
    return operands_.bwd_divisors(chunk);
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
};

}  // namespace flashtile::cpu
