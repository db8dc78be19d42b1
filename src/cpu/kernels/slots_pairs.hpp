// SPDX-License-Identifier: Apache-2.0
#pragma once

// Slots (slots.hpp) over bf16 pairs. Each of their passes over a state is one of vector decay, for
// which slots are key dimensions and s the keys: what a state with columns of slots gives is what
// dQ and dK take there (vector_decay_keys.hpp), what one with rows of slots gives are the output
// and dV (vector_decay_chunk.hpp, vector_decay_values.hpp).

#include "cpu/kernels/slots_inputs.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

inline StripRange strips_of(int64_t dim) { return {0, whole_strips(dim) / kStripWidth}; }

/// Forward, what each member reads of a state with columns of slots that gains keys times s,
/// without a row's own key. Of this and of what follows: a bit for each strip that is done.
inline uint64_t read_slots_by_pairs(const SlotsChunk& c, const SlotsInputs& in, int64_t depth,
                                    const SlotsOperand& key, const SlotsOperand& query,
                                    const SlotsOperand& out, float* state, uint16_t* kept,
                                    RowPrefetch* prefetch) {
  if (c.pairs == nullptr) return 0;
  const StripRange strips = strips_of(c.num_slots);
  return c.pairs->bwd_keys(
      {prefetch, /*is_back=*/false, c.ends_sequence, c.rows,   c.num_slots, depth,
       strips,   c.num_members,     nullptr,         out.step, query.rows,  query.step,
       in.s,     key.rows,          in.decay,        in.ld_m,  state,       out.rows,
       kept,     nullptr,           c.pairs_scratch});
}

/// Backward, what `query` reads of the gradient of such a state, which gains each member's key
/// times value; what a gate's sums begin with goes to `begun`.
inline uint64_t slot_gradients_by_pairs(const SlotsChunk& c, const SlotsInputs& in, int64_t depth,
                                        const SlotsOperand& key, const SlotsOperand& value,
                                        const SlotsOperand& query, const SlotsOperand& out,
                                        float* state, uint16_t* kept, double* begun,
                                        RowPrefetch* prefetch) {
  if (c.pairs == nullptr) return 0;
  const StripRange strips = strips_of(c.num_slots);
  return c.pairs->bwd_keys({prefetch,
                            /*is_back=*/true,
                            c.ends_sequence,
                            c.rows,
                            c.num_slots,
                            depth,
                            strips,
                            c.num_members,
                            value.rows,
                            value.step,
                            key.rows,
                            key.step,
                            in.s,
                            query.rows,
                            in.decay,
                            in.ld_m,
                            state,
                            out.rows,
                            kept,
                            begun,
                            c.pairs_scratch});
}

/// Likewise, what s reads of the gradient of a state with rows of slots and `dim` columns.
inline uint64_t value_gradients_by_pairs(const SlotsChunk& c, const SlotsInputs& in, int64_t dim,
                                         const SlotsOperand& key, const SlotsOperand& value,
                                         const SlotsOperand& out, float* state,
                                         RowPrefetch* prefetch) {
  if (c.pairs == nullptr) return 0;
  return c.pairs->bwd_values({prefetch, c.rows, c.num_slots, dim, strips_of(dim), c.num_members,
                              key.rows, key.step, value.rows, value.step, in.s, in.decay, in.ld_m,
                              value.ld, state, out.rows, c.pairs_scratch});
}

/// Forward, what queries read of a state with rows of slots: all strips.
inline void read_values_by_pairs(const SlotsChunk& c, const SlotsInputs& in, int64_t dim,
                                 const ChunkRows& value, const SlotsOperand& query, float scale,
                                 const ChunkRows* out, float* state) {
  RecurrentChunk chunk{};
  for (int64_t m = 0; m < c.num_members; ++m) {
    in.queries[m] = {reinterpret_cast<char*>(query.row(0, m)), query.ld * 4, 1, DType::kF32};
  }
  chunk.update = RecurrentUpdate::kAdd;
  chunk.scale = scale;
  chunk.rows = c.rows;
  chunk.max_rows = c.max_rows;
  chunk.head_dim = c.num_slots;
  chunk.head_dim_v = dim;
  chunk.num_strips = strips_of(dim).count;
  chunk.q = in.queries;
  chunk.out = out;
  chunk.num_members = c.num_members;
  chunk.k = c.s;
  chunk.v = value;
  chunk.g = c.g;
  chunk.is_vector_gate = true;
  chunk.strips = state;
  chunk.fwd_rows = recurrent_fwd_chunk;
  chunk.scratch = c.pairs_scratch;
  c.pairs->fwd_chunk(chunk);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
