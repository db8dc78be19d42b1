// SPDX-License-Identifier: Apache-2.0
//
// What one instruction set offers to the launchers of gated slot attention. Formulas are in
// slots.hpp.
#pragma once

#include "cpu/kernels/recurrent_types.hpp"

namespace flashtile::cpu {

/// What one of several workers does of a pass; it may go through the rows by itself where what it
/// reads of other parts is kept.
enum class SlotsPart : uint8_t {
  kAll,
  kLogits,      ///< weights; forward, and first of bwd_queries
  kValues,      ///< out of kept weights; dv, of bwd_keys
  kDp,          ///< what dO reads of the values' state; with kLogits
  kQueries,     ///< dlogits and dq, after those two
  kKeySlots,    ///< ds by keys, of bwd_keys
  kValueSlots,  ///< ds by values
  kKeys,        ///< dk
  kGates,       ///< ds and dg, after the other four
};

/// Of a backward over pairs: both states between two chunks, rounded; null where they are not kept.
struct SlotsKept {
  uint16_t* keys;
  uint16_t* values;
};

/// Some rows of one state head: all slots, and all output heads that read them. Each state is there
/// as strips of what it is summed along with (recurrent_types.hpp): columns are slots, key
/// dimensions or value dimensions.
struct SlotsChunk {
  SlotsPart part;
  float scale;
  int64_t rows;
  int64_t max_rows;  ///< that the scratch was made for
  int64_t num_slots;
  int64_t head_dim;
  int64_t head_dim_v;
  int64_t num_members;  ///< output heads
  const ChunkRows* q;
  const ChunkRows* out;
  ChunkRows k, v, s, g;
  int64_t next_begin, next_end;  ///< rows taken next, as in RecurrentChunk
  float* keys_by_slot;           ///< Sk: head_dim rows, columns are slots
  float* keys_by_key;            ///< Sk transposed: a row for each slot; of a backward
  float* values_by_slot;   ///< Sv transposed: head_dim_v rows, columns are slots; of a backward
  float* values_by_value;  ///< Sv: a row for each slot
  // Of a backward; gradients of the states in the same forms, after the last forward chunk.
  bool ends_sequence;
  const ChunkRows* dout;
  const ChunkRows* dq;
  ChunkRows dk, dv, ds, dg;
  float* weights;    ///< p of all rows of each member, whole strips; of a forward in parts too
  float* dlogits;    ///< likewise
  float* read_sums;  ///< what reading adds to a decay's gradient, whole strips of slots
  // What parts leave to others, in the same forms; null where there are none.
  float* decayed_logits;
  float* decayed_dp;
  float* key_slots;
  float* value_slots;
  double* passing;                      ///< num_slots gradients of log decays
  const VectorDecayPairKernels* pairs;  ///< null where all is done row by row
  SlotsKept kept_before, kept_behind;
  /// Where states are kept behind the rows, what `passing` begins with anew there: num_slots sums
  /// over the keys' state and as many over the values', or NaN.
  double* begun;
  char* pairs_scratch;
  char* scratch;
};

struct SlotsKernels {
  int64_t (*scratch_bytes)(const SlotsChunk& shape);
  void (*fwd_chunk)(const SlotsChunk& chunk);
  /// First chunk first: weights and dlogits of all rows, and dq.
  void (*bwd_queries)(const SlotsChunk& chunk);
  /// passing = the sums by slot of keys_by_slot and values_by_slot times those of `dchunk`.
  void (*state_dots)(const SlotsChunk& chunk, const SlotsChunk& dchunk);
  /// Last chunk first, with gradients of states in the place of states.
  void (*bwd_keys)(const SlotsChunk& chunk);
};

}  // namespace flashtile::cpu
