// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a chunk of slots (slots.hpp) works on: its inputs as floats, and what it makes of them.

#include "cpu/kernels/recurrent_bwd.hpp"
#include "cpu/kernels/slots_types.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// A chunk as floats, in rows of whole strips.
struct SlotsInputs {
  float* q;  ///< times scale; of each member
  float* k;
  float* v;
  float* s;
  float* decay;
  float* logits;          ///< of each member
  float* wide;            ///< of each member: out, or dout
  float* dp;              ///< of each member
  float* decayed_logits;  ///< without a row's own k and s; of each member
  float* decayed_dp;      ///< without its own v and s; likewise
  float* keys;            ///< of each member: dq; dk
  float* values;          ///< dv
  float* slots;           ///< ds, then dg
  float* more_slots;
  ChunkRows* queries;  ///< rows of floats that a product reads a state with; of each member
  float* ones;         ///< a decay, a key and a value that change nothing
  float* zeros;
  uint8_t* resets;
  int64_t ld_k, ld_v, ld_m;
  int64_t bytes;

  SlotsInputs(char* memory, const SlotsChunk& c) {
    Scratch scratch{memory};
    ld_k = whole_strips(c.head_dim);
    ld_v = whole_strips(c.head_dim_v);
    ld_m = whole_strips(c.num_slots);
    const int64_t rows = c.max_rows;
    const int64_t member_rows = rows * c.num_members;
    q = scratch.take<float>(member_rows * ld_k);
    k = scratch.take<float>(rows * ld_k);
    v = scratch.take<float>(rows * ld_v);
    s = scratch.take<float>(rows * ld_m);
    decay = scratch.take<float>(rows * ld_m);
    logits = scratch.take<float>(member_rows * ld_m);
    wide = scratch.take<float>(member_rows * ld_v);
    for (float** block : {&dp, &decayed_logits, &decayed_dp}) {
      *block = scratch.take<float>(member_rows * ld_m);
    }
    keys = scratch.take<float>(member_rows * ld_k);
    values = scratch.take<float>(rows * ld_v);
    slots = scratch.take<float>(rows * ld_m);
    more_slots = scratch.take<float>(rows * ld_m);
    queries = scratch.take<ChunkRows>(c.num_members);
    ones = scratch.take<float>(ld_m);
    zeros = scratch.take<float>(longest());
    resets = scratch.take<uint8_t>(rows);
    bytes = scratch.used;
  }

  int64_t longest() const {
    const int64_t widest = ld_k > ld_v ? ld_k : ld_v;
    return widest > ld_m ? widest : ld_m;
  }
};

inline int64_t slots_scratch_bytes(const SlotsChunk& shape) {
  return SlotsInputs(nullptr, shape).bytes;
}

FLASHTILE_INLINE bool does(const SlotsChunk& c, SlotsPart part) {
  return c.part == SlotsPart::kAll || c.part == part;
}

/// The inputs that the chunk's part takes, and decays.
inline SlotsInputs pack_slots(const SlotsChunk& c) {
  using P = SlotsPart;
  SlotsInputs in(c.scratch, c);
  const bool takes_keys = does(c, P::kLogits) || c.part == P::kKeySlots || c.part == P::kGates;
  if (takes_keys || c.part == P::kKeys) {
    for (int64_t m = 0; m < c.num_members; ++m) {
      pack_chunk_rows(c.q[m], c.rows, c.head_dim, c.scale, in.q + m * c.max_rows * in.ld_k,
                      in.ld_k);
    }
  }
  if (takes_keys || c.part == P::kQueries) {
    pack_chunk_rows(c.k, c.rows, c.head_dim, 1.0f, in.k, in.ld_k);
  }
  if (c.part != P::kKeySlots && c.part != P::kValueSlots) {
    pack_chunk_rows(c.s, c.rows, c.num_slots, 1.0f, in.s, in.ld_m);
  }
  set_decays(c.g, /*is_vector_gate=*/true, c.rows, c.num_slots, in.decay, in.ld_m, in.resets);
  fill_row(in.ones, in.ld_m, 1);
  fill_row(in.zeros, in.longest(), 0);
  return in;
}

FLASHTILE_INLINE bool takes_values(const SlotsChunk& c) {
  using P = SlotsPart;
  return c.part != P::kLogits && c.part != P::kKeySlots && c.part != P::kKeys;
}

inline void pack_slots_values(const SlotsChunk& c, SlotsInputs& in) {
  if (takes_values(c)) pack_chunk_rows(c.v, c.rows, c.head_dim_v, 1.0f, in.v, in.ld_v);
}

inline void pack_slots_dout(const SlotsChunk& c, SlotsInputs& in) {
  for (int64_t m = 0; m < c.num_members && takes_values(c); ++m) {
    pack_chunk_rows(c.dout[m], c.rows, c.head_dim_v, 1.0f, in.wide + m * c.max_rows * in.ld_v,
                    in.ld_v);
  }
}

/// Rows of floats, of each member `step` apart.
struct SlotsOperand {
  float* rows;
  int64_t ld;
  int64_t step;

  float* row(int64_t t, int64_t member = 0) const { return rows + member * step + t * ld; }
};

/// The operands of a chunk by name.
struct SlotsOperands {
  SlotsOperand q, k, v, s, logits, wide, dp, decayed_logits, decayed_dp, keys, values, slots,
      more_slots, weights, dlogits;

  SlotsOperands(const SlotsChunk& c, const SlotsInputs& in) {
    const int64_t rows = c.max_rows;
    const auto of = [&](float* data, int64_t ld) { return SlotsOperand{data, ld, rows * ld}; };
    q = of(in.q, in.ld_k);
    k = of(in.k, in.ld_k);
    v = of(in.v, in.ld_v);
    s = of(in.s, in.ld_m);
    logits = of(in.logits, in.ld_m);
    wide = of(in.wide, in.ld_v);
    dp = of(in.dp, in.ld_m);
    decayed_logits = of(in.decayed_logits, in.ld_m);
    decayed_dp = of(in.decayed_dp, in.ld_m);
    keys = of(in.keys, in.ld_k);
    values = of(in.values, in.ld_v);
    slots = of(in.slots, in.ld_m);
    more_slots = of(in.more_slots, in.ld_m);
    const auto kept = [&](float* data) { return SlotsOperand{data, in.ld_m, c.rows * in.ld_m}; };
    weights = c.weights == nullptr ? logits : kept(c.weights);
    dlogits = kept(c.dlogits);
    if (c.decayed_logits != nullptr) decayed_logits = kept(c.decayed_logits);
    if (c.decayed_dp != nullptr) decayed_dp = kept(c.decayed_dp);
    if (c.key_slots != nullptr) slots.rows = c.key_slots;
    if (c.value_slots != nullptr) more_slots.rows = c.value_slots;
  }
};

/// What is to be fetched during a pass over a state: some inputs of the chunk that comes next, rows
/// that are written.
struct SlotsPrefetch {
  const SlotsChunk& chunk;
  RowPrefetch rows;

  explicit SlotsPrefetch(const SlotsChunk& c) : chunk(c) {}
  SlotsPrefetch& next(const ChunkRows& input, int64_t dim) {
    prefetch_rows(input, chunk.next_begin, chunk.next_end, dim, &rows);
    return *this;
  }
  SlotsPrefetch& next(const ChunkRows* inputs, int64_t dim) {
    for (int64_t m = 0; m < chunk.num_members; ++m) next(inputs[m], dim);
    return *this;
  }
  SlotsPrefetch& result(const ChunkRows& output, int64_t dim) {
    prefetch_rows(output, 0, chunk.rows, dim, &rows);
    return *this;
  }
  SlotsPrefetch& result(const ChunkRows* outputs, int64_t dim) {
    for (int64_t m = 0; m < chunk.num_members; ++m) result(outputs[m], dim);
    return *this;
  }
};

}  // namespace flashtile::cpu::FLASHTILE_ISA
