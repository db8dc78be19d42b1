// SPDX-License-Identifier: Apache-2.0
//
// What tasks of the backward of scalar decay take: sizes, a worker's memory, and what is known of
// each state.
#pragma once

#include <algorithm>
#include <array>

#include "core/workspace.hpp"
#include "cpu/scalar_decay_call.hpp"

namespace flashtile::cpu {

/// The states of a span's chunks that two workers keep: all of a sequence up to here. They have
/// less than the 32 MiB from which on malloc gives memory back, and gets it page by page.
inline constexpr int64_t kSpanBytes = int64_t{24} << 20;

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

}  // namespace flashtile::cpu
