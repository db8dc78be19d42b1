// SPDX-License-Identifier: Apache-2.0
//
// What one instruction set offers to the launchers of scalar decay (src/ops/scalar_decay): chunks
// of rows of one state, over plain data. Formulas are in scalar_decay_chunk.hpp.
#pragma once

#include "cpu/kernels/chunk_rows.hpp"

namespace flashtile::cpu {

/// What an output is divided by, with d = scale q.n.
enum class ChunkDivisor : uint8_t { kNone, kSum, kAtLeastOne, kAtLeastFloor };

/// The same for all chunks of a call.
struct ScalarDecayShape {
  int64_t max_rows;  ///< of a chunk
  int64_t head_dim;
  int64_t head_dim_v;
  ChunkDivisor divisor;
  float scale;
  bool is_delta;  ///< values are corrected by the delta rule; forward over bf16 pairs only
};

/// Gates of the rows of a chunk. Decays are powers of two, summed up since the chunk began or,
/// behind a reset, since that; a sum is `high` + `low`, so that differences of large sums are
/// exact. Arrays have room for whole vectors.
struct ChunkGates {
  const float* high;
  const float* low;
  /// The first row whose input a row sees; negative: it sees the state before the chunk too.
  const int32_t* first;
  const float* weight;  ///< of what enters the state; null: 1
  const float* floor;   ///< of ChunkDivisor::kAtLeastFloor
  bool has_decay;       ///< false: all sums are 0, and no row is a reset
};

/// A chunk of one state forward. The state is head_dim rows of state_ld floats: S, and behind it a
/// column n where there is a divisor.
struct ScalarDecayFwdChunk {
  const ScalarDecayShape* shape;
  int64_t rows;
  ChunkRows k;
  ChunkRows v;
  const ChunkRows* q;  ///< of each output head that reads the state
  const ChunkRows* out;
  int64_t num_members;
  ChunkGates gates;
  const float* skip;  ///< head_dim_v factors of v, added to the output; may be null
  ChunkRows beta;     ///< of the delta rule
  bool normalizes;    ///< of the delta rule: q and k are divided by sqrt(sum of squares + 1e-6)
  const ScalarDecayFwdChunk*
      next;        ///< the chunk that follows, to be fetched meanwhile; may be null
  float* state;    ///< before the chunk, then behind it
  bool has_state;  ///< false: it is zero, and `state` is only written
  char* scratch;
};

/// Some columns of a state, or some rows.
struct ColumnRange {
  int64_t first;
  int64_t count;
};

/// What a row of an output is divided by, inverted, and the gradient of d.
struct RowDivisor {
  float inverse;
  float dd;
};

/// A chunk of one state backward. Gradients of shared heads are summed up in `dq` and `dk`, rows of
/// floats of dk_ld, over the states of a key head: the last one writes them out.
struct ScalarDecayBwdChunk {
  const ScalarDecayShape* shape;
  int64_t rows;
  ChunkRows k;
  ChunkRows v;
  const ChunkRows* q;  ///< of each output head that reads the state
  const ChunkRows* dout;
  int64_t num_members;
  ChunkGates gates;
  const float* skip;  ///< head_dim_v factors of v; may be null
  ChunkRows beta;     ///< of the delta rule, as in the forward
  bool normalizes;
  /// The rows of `state` that bwd_state changes, or of `dstate`: all of them but where bwd_state or
  /// bwd_dstate is to take a part, which has the same bits.
  ColumnRange part;
  /// Before the chunk, transposed: columns of the forward's state, each dk_ld floats.
  float* state;
  float* state_behind;  ///< of bwd_state, likewise; may be `state`
  bool has_state;       ///< false: it is zero
  float*
      dstate;  ///< gradient of the state behind the chunk, then of that before it; not transposed
  bool has_dstate;
  bool keeps_dstate;     ///< it stays that behind the chunk
  RowDivisor* divisors;  ///< of each row and output head, between bwd_divisors and bwd_dstate
  float* dq;
  float* dk;
  bool is_added;  ///< to what dq and dk hold
  bool is_last;
  const ChunkRows* dq_rows;  ///< of each output head; no data where it is not wanted
  ChunkRows dk_rows;
  ChunkRows dv;
  ChunkRows dbeta;
  const ScalarDecayBwdChunk*
      next;            ///< the chunk that follows, to be fetched meanwhile; may be null
  double* dlog_decay;  ///< of each row
  double* dweight;     ///< only where there are weights
  double* dskip;       ///< head_dim_v sums, added to
  char* scratch;
};

/// The kernels for one kind of operands. What takes a chunk refuses it, with nothing written, by
/// returning false: where an input is not finite, and there is more than one row, rows have to be
/// worked on one by one, so that 0 times infinity reaches no row that does not see it. For the
/// delta rule there is no bwd_divisors, and over floats no forward.
struct ScalarDecayOperandKernels {
  int64_t (*fwd_scratch_bytes)(const ScalarDecayShape& shape) = nullptr;
  bool (*fwd_chunk)(const ScalarDecayFwdChunk& chunk) = nullptr;
  int64_t (*bwd_scratch_bytes)(const ScalarDecayShape& shape) = nullptr;
  /// The state behind the chunk.
  bool (*bwd_state)(const ScalarDecayBwdChunk& chunk) = nullptr;
  /// `divisors`, from the state before the chunk.
  bool (*bwd_divisors)(const ScalarDecayBwdChunk& chunk) = nullptr;
  /// The gradient of the state before the chunk, in place of that behind it: what bwd_chunk does to
  /// it. With a divisor it takes what bwd_divisors took, and refuses nothing.
  bool (*bwd_dstate)(const ScalarDecayBwdChunk& chunk) = nullptr;
  bool (*bwd_chunk)(const ScalarDecayBwdChunk& chunk) = nullptr;
};

struct ScalarDecayKernels {
  int64_t (*state_ld)(const ScalarDecayShape& shape);  ///< of the forward's state, and of dstate
  int64_t (*dk_ld)(const ScalarDecayShape& shape);
  ScalarDecayOperandKernels operands;  ///< f32 arithmetic; any input dtype
};

}  // namespace flashtile::cpu
