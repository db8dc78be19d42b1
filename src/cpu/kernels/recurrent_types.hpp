// SPDX-License-Identifier: Apache-2.0
//
// What one instruction set offers to the launchers of recurrences that are worked out row by row:
// vector decay and the delta family. Formulas are in recurrent_fwd.hpp.
#pragma once

#include "cpu/kernels/chunk_rows.hpp"
#include "cpu/kernels/scalar_decay_types.hpp"

namespace flashtile::cpu {

/// How a row changes the decayed state.
enum class RecurrentUpdate : uint8_t {
  kAdd,      ///< + k v'
  kDelta,    ///< + k (beta (v - R' k))', R the decayed state
  kLowRank,  ///< + b (S' a)' + k v', S the state before the decay
};

/// Some rows of one state, for `num_strips` strips of its columns. A strip has `strip_width`
/// columns: head_dim rows of floats without gaps, so that it stays in the first cache. Columns
/// beyond head_dim_v are zero.
struct RecurrentChunk {
  RecurrentUpdate update;
  bool reads_before;  ///< q reads the state before the row
  bool normalizes;    ///< q and k are divided by sqrt(sum of squares + 1e-6)
  float scale;
  int64_t rows;      ///< at most max_rows
  int64_t max_rows;  ///< that the scratch was made for
  int64_t head_dim;
  int64_t head_dim_v;
  int64_t first_strip;
  int64_t num_strips;
  const ChunkRows* q;  ///< of each output head that reads the state
  const ChunkRows* out;
  int64_t num_members;
  ChunkRows k, v;
  ChunkRows g;          ///< log decays; no data: none
  bool is_vector_gate;  ///< one for each key dimension
  ChunkRows beta;       ///< kDelta
  ChunkRows a, b;       ///< kLowRank
  const float* bonus;   ///< head_dim weights of the row's own k v' in what is read; may be null
  /// Rows of the inputs that are taken next, counted from this chunk's first: to be fetched.
  int64_t next_begin, next_end;
  float* strips;  ///< from first_strip on
  /// Of VectorDecayPairKernels: what takes rows that products would mix up, one by one.
  void (*fwd_rows)(const RecurrentChunk& chunk);
  char* scratch;
};

/// One row of one state in place. `inputs` has one row and no strips.
struct StateStep {
  RecurrentChunk inputs;
  float weight;  ///< of k v'
  float* state;  ///< head_dim rows of head_dim_v floats, ld floats apart
  int64_t ld;
  const float* next_state;  ///< of the same shape, fetched meanwhile; may be null
  ChunkDivisor divisor;
  float floor;  ///< of ChunkDivisor::kAtLeastFloor
  float* norm;  ///< head_dim floats, the sum of keys; null without a divisor
  int64_t norm_stride;
  const float* skip;  ///< head_dim_v factors of v, added to the output; may be null
};

/// Strips of a state.
struct StripRange {
  int64_t first;
  int64_t count;
};

struct RowPrefetch;

/// Some rows of one state of vector decay backward, as floats in rows of whole strips; `q` and
/// `dout` are of the queries that read the state behind a row.
struct VectorDecayValues {
  RowPrefetch* prefetch;  ///< spread over the products
  int64_t rows;
  int64_t head_dim;
  int64_t head_dim_v;
  StripRange values;
  int64_t num_members;
  const float* q;  ///< times scale
  int64_t q_step;  ///< to the next member's
  const float* dout;
  int64_t dout_step;
  const float* k;
  const float* decay;
  int64_t ld_k, ld_v;
  float* dstate;
  float* dv;
  char* scratch;
};

/// Likewise, over strips of key dimensions of the transposed state: dQ forward, dK back, both
/// without a row's own key or query.
struct VectorDecayKeys {
  RowPrefetch* prefetch;  ///< spread over the products
  bool is_back;
  bool ends_sequence;  ///< forward, the last row is not added to the state
  int64_t rows;
  int64_t head_dim;
  int64_t head_dim_v;
  StripRange keys;
  int64_t num_members;
  const float* q;
  int64_t q_step;  ///< of dQ, too
  const float* dout;
  int64_t dout_step;
  const float* k;
  const float* v;
  const float* decay;
  int64_t ld_k;
  float* state;
  float* out;
  uint16_t* kept;  ///< the state before the rows, or back that behind them; may be null
  double* passing;
  char* scratch;
};

/// Some rows of one state of vector decay backward: dQ, dK and the decays' gradients of some strips
/// of key dimensions, dV of some strips of value dimensions. The state and one copy of its
/// gradient are transposed: strips of key dimensions, head_dim_v rows each.
struct RecurrentBwdChunk {
  bool reads_before;
  bool begins_sequence;
  bool ends_sequence;
  float scale;
  int64_t rows;
  int64_t max_rows;
  int64_t head_dim;
  int64_t head_dim_v;
  StripRange keys;
  StripRange values;
  const ChunkRows* q;  ///< of each output head that reads the state
  const ChunkRows* dout;
  int64_t num_members;
  ChunkRows k, v, g;
  const float* bonus;             ///< may be null
  const RecurrentBwdChunk* next;  ///< the one that follows, to be fetched meanwhile; may be null
  float* state;                   ///< runs forward
  float* dstate_transposed;
  float* dstate;
  const ChunkRows* dq;  ///< of each output head; no data where it is not wanted
  ChunkRows dk, dv, dg;
  float* query_sums;  ///< what q reads of the decayed state, head_dim each: written forward
  double* passing;    ///< head_dim gradients of log decays
  double* dbonus;     ///< head_dim sums, added to
  /// Null where all is done row by row.
  const struct VectorDecayPairKernels* pairs;
  uint16_t* kept_before;  ///< the state before the rows; null where it is not kept
  uint16_t* kept_behind;
  char* pairs_scratch;
  char* scratch;
};

/// Some rows of one state of the delta family backward; formulas are in delta_bwd.hpp. Value passes
/// take strips of value dimensions, key passes strips of key dimensions of the transposed state.
struct DeltaBwdChunk {
  bool is_low_rank;
  bool normalizes;  ///< q and k are divided by sqrt(sum of squares + 1e-6)
  bool is_vector_gate;
  bool is_first;  ///< of the states that share q and k: sums begin with it
  bool begins_sequence;
  bool ends_sequence;
  float scale;
  int64_t rows;
  int64_t max_rows;
  int64_t head_dim;
  int64_t head_dim_v;
  int64_t first_strip;
  int64_t num_strips;
  ChunkRows q, k, v, dout;
  ChunkRows g;                ///< no data: none
  ChunkRows beta;             ///< not for low rank
  ChunkRows a, b;             ///< low rank
  const DeltaBwdChunk* next;  ///< the one that follows, to be fetched meanwhile; may be null
  bool is_packed;             ///< the scratch has what values_backward packed
  /// All strips: of value passes those of the state or its gradient, of key passes those of the
  /// state before the chunk without what the row before it adds, which is used up.
  float* state;
  float* state_behind;  ///< likewise, behind the chunk, without what its last row adds
  const float* dstate;  ///< of state_dots
  /// One row for each of these rows, as whole strips; of `read` also those before, of `dread` also
  /// the one behind.
  float* read;      ///< v - R' k, or S' a
  float* dread;     ///< X' k, or X' b
  float* dk_parts;  ///< of each strip of value dimensions, part_stride apart
  float* db_parts;  ///< likewise; low rank
  int64_t part_stride;
  float* dq;          ///< R do, in the end S do
  float* dkeys;       ///< -R dv, or S dx
  float* dq_sum;      ///< of all states that share q and k; may be dq
  float* dk_sum;      ///< likewise; may be dkeys
  double* gate_sums;  ///< gradient of a head's decay, one part for each strip of key dimensions
  double* passing;    ///< head_dim gradients of log decays
  ChunkRows dq_rows, dk_rows, dv_rows, dg_rows, dbeta_rows, da_rows, db_rows;
  char* scratch;
};

/// For a state: values_forward for all chunks, state_dots, then for each chunk, from the last one
/// on, the other passes and finish_state. Strips of a pass do not depend on each other. After all
/// states that share q and k: finish_keys.
struct DeltaBwdKernels {
  int64_t (*scratch_bytes)(int64_t max_rows, int64_t head_dim, int64_t head_dim_v);
  void (*values_forward)(const DeltaBwdChunk& chunk);  ///< first chunk first
  /// passing = the sums of `state` times `dstate` over value dimensions.
  void (*state_dots)(const DeltaBwdChunk& chunk);
  void (*values_backward)(const DeltaBwdChunk& chunk);
  void (*keys_backward)(const DeltaBwdChunk& chunk);
  void (*finish_state)(const DeltaBwdChunk& chunk);
  void (*finish_keys)(const DeltaBwdChunk& chunk);
};

/// Vector decay over bf16 pairs in chunks of at most 32 rows; formulas are in
/// vector_decay_chunk.hpp. Strips are those of RecurrentKernels.
struct VectorDecayPairKernels {
  int64_t (*scratch_bytes)(int64_t max_rows, int64_t head_dim, int64_t head_dim_v,
                           int64_t num_members);
  void (*fwd_chunk)(const RecurrentChunk& chunk);
  int64_t (*bwd_scratch_bytes)(int64_t head_dim, int64_t head_dim_v, int64_t num_members);
  int64_t (*kept_elements)(int64_t head_dim, int64_t head_dim_v);
  /// dV and the gradient of the state before the rows: a bit for each strip that is done. Others
  /// have to be taken row by row.
  uint64_t (*bwd_values)(const VectorDecayValues& values);
  /// dQ or dK, and the state or its gradient: likewise.
  uint64_t (*bwd_keys)(const VectorDecayKeys& keys);
};

struct RecurrentKernels {
  int64_t strip_width;  ///< columns
  int64_t (*scratch_bytes)(int64_t max_rows, int64_t head_dim, int64_t head_dim_v,
                           int64_t num_members);
  /// Between rows of `ld` floats and strips [first, first + count).
  void (*load_strips)(const float* state, int64_t ld, int64_t head_dim, int64_t head_dim_v,
                      int64_t first, int64_t count, float* strips);
  void (*store_strips)(const float* strips, int64_t head_dim, int64_t head_dim_v, int64_t first,
                       int64_t count, float* state, int64_t ld);
  void (*fwd_chunk)(const RecurrentChunk& chunk);
  void (*step)(const StateStep& step);

  int64_t (*bwd_scratch_bytes)(int64_t max_rows, int64_t head_dim, int64_t head_dim_v,
                               int64_t num_members);
  /// The chunks in order, then `state_dots`, then the chunks from the last one on.
  void (*bwd_queries)(const RecurrentBwdChunk& chunk);
  void (*state_dots)(const RecurrentBwdChunk& chunk);
  void (*bwd_keys)(const RecurrentBwdChunk& chunk);

  DeltaBwdKernels delta_bwd;
};

}  // namespace flashtile::cpu
