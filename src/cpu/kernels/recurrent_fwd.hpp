// SPDX-License-Identifier: Apache-2.0
#pragma once

// Recurrences over rows, a strip of the state's columns at a time. With d = exp(g), and S_i row i
// of a strip:
//
//   S_i = d_i S_i + k_i y' (+ b_i x')     o = sum over i of q_i S_i
//   y = v, or for the delta rule beta (v - sum of d_i k_i S_i); x = sum of a_i S_i
//
// One pass over the strip does all of it: what the following row wants to know of the state is
// summed up while the state is written. A strip is as wide as the register tile of a product and
// stays in the first cache. A chunk form would do as much arithmetic, and has exponents to take
// care of; delta_chunk.hpp has one for bf16, whose products take half the time. Columns are
// independent of each other.

#include "cpu/kernels/linear_operands.hpp"
#include "cpu/kernels/recurrent_types.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

inline constexpr int64_t kStripWidth = kTileVecs * kLanes;

FLASHTILE_INLINE int64_t whole_strips(int64_t n) {
  return (n + kStripWidth - 1) / kStripWidth * kStripWidth;
}

/// The inputs of a chunk as floats, rows of ld_k or ld_v.
struct RecurrentInputs {
  float* q;  ///< times scale; of each member
  float* k;
  float* decay;  ///< exp(g)
  float* read;   ///< what the correction reads the state with: d k, or a
  float* b;
  float* v;
  float* out;  ///< of each member
  float* beta;
  float* own;       ///< of each member: what q reads of the row's own v
  uint8_t* resets;  ///< some decay of the row is 0
  int64_t ld_k, ld_v;
  int64_t bytes;

  RecurrentInputs(char* memory, int64_t rows, int64_t head_dim, int64_t head_dim_v,
                  int64_t num_members) {
    Scratch scratch{memory};
    ld_k = tile_ld(head_dim);
    ld_v = whole_strips(head_dim_v);
    q = scratch.take<float>(num_members * rows * ld_k);
    k = scratch.take<float>(rows * ld_k);
    decay = scratch.take<float>(rows * ld_k);
    read = scratch.take<float>(rows * ld_k);
    b = scratch.take<float>(rows * ld_k);
    v = scratch.take<float>(rows * ld_v);
    out = scratch.take<float>(num_members * rows * ld_v);
    beta = scratch.take<float>(rows);
    own = scratch.take<float>(num_members * rows);
    resets = scratch.take<uint8_t>(rows);
    bytes = scratch.used;
  }
};

inline int64_t recurrent_scratch_bytes(int64_t max_rows, int64_t head_dim, int64_t head_dim_v,
                                       int64_t num_members) {
  return RecurrentInputs(nullptr, max_rows, head_dim, head_dim_v, num_members).bytes;
}

inline void recurrent_load_strips(const float* state, int64_t ld, int64_t head_dim,
                                  int64_t head_dim_v, int64_t first, int64_t count, float* strips) {
  for (int64_t n = 0; n < count; ++n) {
    const int64_t column = (first + n) * kStripWidth;
    for (int64_t i = 0; i < head_dim; ++i) {
      float* to = strips + (n * head_dim + i) * kStripWidth;
      for (int64_t j = 0; j < kStripWidth; j += kLanes) {
        store(to + j, load_partial(state + i * ld + column + j, head_dim_v - column - j));
      }
    }
  }
}

inline void recurrent_store_strips(const float* strips, int64_t head_dim, int64_t head_dim_v,
                                   int64_t first, int64_t count, float* state, int64_t ld) {
  for (int64_t n = 0; n < count; ++n) {
    const int64_t column = (first + n) * kStripWidth;
    for (int64_t i = 0; i < head_dim; ++i) {
      const float* from = strips + (n * head_dim + i) * kStripWidth;
      for (int64_t j = 0; j < kStripWidth; j += kLanes) {
        store_partial(state + i * ld + column + j, load(from + j), head_dim_v - column - j);
      }
    }
  }
}

inline void pack_chunk_rows(const ChunkRows& source, int64_t rows, int64_t dim, float scale,
                            float* dst, int64_t ld) {
  const RowList list(source, rows);
  pack_rows({list.rows, source.dtype, source.stride}, rows, dim, dst, ld, scale);
}

inline void normalize_rows(int64_t rows, int64_t dim, float scale, float* x, int64_t ld) {
  for (int64_t t = 0; t < rows; ++t) {
    const float square = row_dot(x + t * ld, x + t * ld, dim);
    scale_row(x + t * ld, dim, scale / __builtin_sqrtf(square + 1e-6f));
  }
}

/// exp(g), in one row for each key dimension; notes rows with a decay of 0.
inline void set_decays(const ChunkRows& g, bool is_vector_gate, int64_t rows, int64_t head_dim,
                       float* decays, int64_t ld, uint8_t* resets) {
  if (g.data != nullptr) pack_chunk_rows(g, rows, is_vector_gate ? head_dim : 1, 1.0f, decays, ld);
  for (int64_t t = 0; t < rows; ++t) {
    float* decay = decays + t * ld;
    if (!is_vector_gate) {
      const Vf x = g.data == nullptr ? broadcast(1.0f) : exp(broadcast(decay[0]));
      for (int64_t i = 0; i < head_dim; i += kLanes) store(decay + i, x);
      resets[t] = any(x == zero()) ? 1 : 0;
      continue;
    }
    Mf is_reset = first_lanes(0);
    for (int64_t i = 0; i < head_dim; i += kLanes) {
      const Vf x = exp(load(decay + i));
      is_reset = is_reset | (x == zero());
      store(decay + i, x);
    }
    resets[t] = any(is_reset) ? 1 : 0;
  }
}

inline void pack_recurrent_inputs(const RecurrentChunk& c, RecurrentInputs& in) {
  const int64_t ld = in.ld_k;
  for (int64_t member = 0; member < c.num_members; ++member) {
    float* q = in.q + member * c.max_rows * ld;
    pack_chunk_rows(c.q[member], c.rows, c.head_dim, c.normalizes ? 1.0f : c.scale, q, ld);
    if (c.normalizes) normalize_rows(c.rows, c.head_dim, c.scale, q, ld);
  }
  pack_chunk_rows(c.k, c.rows, c.head_dim, 1.0f, in.k, ld);
  if (c.normalizes) normalize_rows(c.rows, c.head_dim, 1.0f, in.k, ld);
  pack_chunk_rows(c.v, c.rows, c.head_dim_v, 1.0f, in.v, in.ld_v);
  set_decays(c.g, c.is_vector_gate, c.rows, c.head_dim, in.decay, ld, in.resets);
  if (c.update == RecurrentUpdate::kDelta) {
    pack_chunk_rows(c.beta, c.rows, 1, 1.0f, in.beta, 1);
    for (int64_t n = 0; n < c.rows * ld; n += kLanes) {
      store(in.read + n, load(in.decay + n) * load(in.k + n));
    }
  }
  if (c.update == RecurrentUpdate::kLowRank) {
    pack_chunk_rows(c.a, c.rows, c.head_dim, 1.0f, in.read, ld);
    pack_chunk_rows(c.b, c.rows, c.head_dim, 1.0f, in.b, ld);
  }
  for (int64_t member = 0; member < c.num_members && c.bonus != nullptr; ++member) {
    for (int64_t t = 0; t < c.rows; ++t) {
      const float* q = in.q + (member * c.max_rows + t) * ld;
      const float* k = in.k + t * ld;
      float sum = 0;
      for (int64_t i = 0; i < c.head_dim; ++i) sum += q[i] * k[i] * c.bonus[i];
      in.own[member * c.max_rows + t] = sum;
    }
  }
}

template <int kVecs>
using StripVectors = Vf[static_cast<size_t>(kVecs)];

/// sum = sum over i of x_i S_i.
template <int kVecs>
FLASHTILE_INLINE void read_strip(const float* state, const float* x, int64_t head_dim,
                                 StripVectors<kVecs>& sum) {
  FLASHTILE_UNROLL
  for (int n = 0; n < kVecs; ++n) sum[n] = zero();
  for (int64_t i = 0; i < head_dim; ++i) {
    const Vf factor = broadcast(x[i]);
    FLASHTILE_UNROLL
    for (int n = 0; n < kVecs; ++n) {
      sum[n] = fma(factor, load(state + i * kStripWidth + n * kLanes), sum[n]);
    }
  }
}

/// What is decayed by exactly 0 is 0, whatever it was.
template <int kVecs>
void clear_reset_rows(const float* decay, int64_t head_dim, float* state) {
  for (int64_t i = 0; i < head_dim; ++i) {
    if (decay[i] != 0) continue;
    for (int n = 0; n < kVecs; ++n) store(state + i * kStripWidth + n * kLanes, zero());
  }
}

/// All rows of a chunk for one strip of kVecs vectors, from column `column` of v and out.
template <RecurrentUpdate kUpdate, bool kReadsBefore, int kVecs>
void recurrent_strip(const RecurrentChunk& c, const RecurrentInputs& in, int64_t column,
                     float* state, RowPrefetch* prefetch) {
  constexpr bool kIsDelta = kUpdate == RecurrentUpdate::kDelta;
  constexpr bool kIsLowRank = kUpdate == RecurrentUpdate::kLowRank;
  const int64_t ld = in.ld_k;
  StripVectors<kVecs> read = {};  // row 0 sets it, which GCC does not see at -O1
  for (int64_t t = 0; t < c.rows; ++t) {
    const float* q = in.q + t * ld;
    const float* k = in.k + t * ld;
    const float* decay = in.decay + t * ld;
    const float* b = in.b + t * ld;
    const float* next = in.read + (t + 1 < c.rows ? t + 1 : t) * ld;
    const bool is_reset = in.resets[t] != 0;
    prefetch->step();
    StripVectors<kVecs> value, added, sum;
    FLASHTILE_UNROLL
    for (int n = 0; n < kVecs; ++n) {
      value[n] = load(in.v + t * in.ld_v + column + n * kLanes);
      sum[n] = zero();
    }
    const auto read_others = [&] {
      for (int64_t member = 1; member < c.num_members; ++member) {
        StripVectors<kVecs> other;
        read_strip<kVecs>(state, in.q + (member * c.max_rows + t) * ld, c.head_dim, other);
        float* out = in.out + (member * c.max_rows + t) * in.ld_v + column;
        for (int n = 0; n < kVecs; ++n) store(out + n * kLanes, other[n]);
      }
    };
    if constexpr (kReadsBefore) read_others();
    // The delta rule reads what the decay has left; low rank, and q before the row, what was there.
    if (is_reset && !kIsLowRank && !kReadsBefore) clear_reset_rows<kVecs>(decay, c.head_dim, state);
    if constexpr (kIsDelta || kIsLowRank) {
      if (t == 0 || (is_reset && kIsDelta)) {
        read_strip<kVecs>(state, in.read + t * ld, c.head_dim, read);
      }
      if (is_reset && kIsLowRank) clear_reset_rows<kVecs>(decay, c.head_dim, state);
      FLASHTILE_UNROLL
      for (int n = 0; n < kVecs; ++n) {
        if constexpr (kIsDelta) value[n] = (value[n] - read[n]) * broadcast(in.beta[t]);
        added[n] = read[n];
        read[n] = zero();
      }
    }
    for (int64_t i = 0; i < c.head_dim; ++i) {
      const Vf di = broadcast(decay[i]);
      const Vf ki = broadcast(k[i]);
      const Vf qi = broadcast(q[i]);
      float* row = state + i * kStripWidth;
      FLASHTILE_UNROLL
      for (int n = 0; n < kVecs; ++n) {
        Vf s = load(row + n * kLanes);
        if constexpr (kReadsBefore) {
          sum[n] = fma(qi, s, sum[n]);
          if (is_reset && decay[i] == 0) s = zero();
        }
        s = fma(ki, value[n], s * di);
        if constexpr (kIsLowRank) s = fma(broadcast(b[i]), added[n], s);
        if constexpr (!kReadsBefore) sum[n] = fma(qi, s, sum[n]);
        if constexpr (kIsDelta || kIsLowRank) read[n] = fma(broadcast(next[i]), s, read[n]);
        store(row + n * kLanes, s);
      }
    }
    FLASHTILE_UNROLL
    for (int n = 0; n < kVecs; ++n) store(in.out + t * in.ld_v + column + n * kLanes, sum[n]);
    if constexpr (!kReadsBefore) read_others();
  }
}

template <RecurrentUpdate kUpdate, bool kReadsBefore, int kVecs>
FLASHTILE_INLINE void recurrent_strip_of(int64_t num_vecs, const RecurrentChunk& c,
                                         const RecurrentInputs& in, int64_t column, float* state,
                                         RowPrefetch* prefetch) {
  if (num_vecs >= kVecs) {
    return recurrent_strip<kUpdate, kReadsBefore, kVecs>(c, in, column, state, prefetch);
  }
  if constexpr (kVecs > 1) {
    recurrent_strip_of<kUpdate, kReadsBefore, kVecs - 1>(num_vecs, c, in, column, state, prefetch);
  }
}

inline void recurrent_strip_by_update(int64_t num_vecs, const RecurrentChunk& c,
                                      const RecurrentInputs& in, int64_t column, float* state,
                                      RowPrefetch* next) {
  constexpr auto kAdd = RecurrentUpdate::kAdd;
  constexpr auto kDelta = RecurrentUpdate::kDelta;
  constexpr auto kLowRank = RecurrentUpdate::kLowRank;
  if (c.update == kDelta) {
    recurrent_strip_of<kDelta, false, kTileVecs>(num_vecs, c, in, column, state, next);
  } else if (c.update == kLowRank) {
    recurrent_strip_of<kLowRank, false, kTileVecs>(num_vecs, c, in, column, state, next);
  } else if (c.reads_before) {
    recurrent_strip_of<kAdd, true, kTileVecs>(num_vecs, c, in, column, state, next);
  } else {
    recurrent_strip_of<kAdd, false, kTileVecs>(num_vecs, c, in, column, state, next);
  }
}

/// The output rows, and the inputs of the following chunk.
inline RowPrefetch recurrent_prefetch(const RecurrentChunk& c) {
  RowPrefetch prefetch;
  const auto add_inputs = [&](const ChunkRows& rows, int64_t dim) {
    prefetch_rows(rows, c.next_begin, c.next_end, dim, &prefetch);
  };
  add_inputs(c.k, c.head_dim);
  add_inputs(c.v, c.head_dim_v);
  if (c.is_vector_gate) add_inputs(c.g, c.head_dim);
  add_inputs(c.a, c.head_dim);
  add_inputs(c.b, c.head_dim);
  for (int64_t member = 0; member < c.num_members; ++member) {
    prefetch_rows(c.out[member], 0, c.rows, c.head_dim_v, &prefetch);
    add_inputs(c.q[member], c.head_dim);
  }
  spread_prefetch(c.num_strips * c.rows, &prefetch);
  return prefetch;
}

/// Of a backward pass, the rows that it writes.
inline void prefetch_bwd_results(const RecurrentBwdChunk& c, bool is_back, RowPrefetch* prefetch) {
  for (int64_t m = 0; m < c.num_members && !is_back; ++m) {
    prefetch_rows(c.dq[m], 0, c.rows, c.head_dim, prefetch);
  }
  if (!is_back) return;
  prefetch_rows(c.dk, 0, c.rows, c.head_dim, prefetch);
  prefetch_rows(c.dv, 0, c.rows, c.head_dim_v, prefetch);
  prefetch_rows(c.dg, 0, c.rows, c.head_dim, prefetch);
}

/// The inputs of the chunk that it takes next.
inline void prefetch_bwd_inputs(const RecurrentBwdChunk& c, RowPrefetch* prefetch) {
  const RecurrentBwdChunk* next = c.next;
  if (next == nullptr) return;
  prefetch_rows(next->k, 0, next->rows, c.head_dim, prefetch);
  prefetch_rows(next->v, 0, next->rows, c.head_dim_v, prefetch);
  prefetch_rows(next->g, 0, next->rows, c.head_dim, prefetch);
  for (int64_t m = 0; m < next->num_members; ++m) {
    prefetch_rows(next->q[m], 0, next->rows, c.head_dim, prefetch);
    prefetch_rows(next->dout[m], 0, next->rows, c.head_dim_v, prefetch);
  }
}

/// Both, over some steps.
inline RowPrefetch recurrent_bwd_prefetch(const RecurrentBwdChunk& c, bool is_back,
                                          int64_t num_steps) {
  RowPrefetch prefetch;
  prefetch_bwd_inputs(c, &prefetch);
  prefetch_bwd_results(c, is_back, &prefetch);
  spread_prefetch(num_steps, &prefetch);
  return prefetch;
}

inline void recurrent_fwd_chunk(const RecurrentChunk& c) {
  RecurrentInputs in(c.scratch, c.max_rows, c.head_dim, c.head_dim_v, c.num_members);
  pack_recurrent_inputs(c, in);
  RowPrefetch prefetch = recurrent_prefetch(c);
  const int64_t begin = c.first_strip * kStripWidth;
  int64_t end = begin;
  for (int64_t n = 0; n < c.num_strips; ++n) {
    const int64_t column = begin + n * kStripWidth;
    const int64_t num_vecs = padded(c.head_dim_v - column) / kLanes;
    float* state = c.strips + n * c.head_dim * kStripWidth;
    end = column + kStripWidth;
    recurrent_strip_by_update(num_vecs, c, in, column, state, &prefetch);
  }
  if (end > c.head_dim_v) end = c.head_dim_v;
  for (int64_t member = 0; member < c.num_members; ++member) {
    float* out = in.out + member * c.max_rows * in.ld_v;
    if (c.bonus != nullptr) {
      for (int64_t t = 0; t < c.rows; ++t) {
        const Vf own = broadcast(in.own[member * c.max_rows + t]);
        for (int64_t j = begin; j < end; j += kLanes) {
          float* to = out + t * in.ld_v + j;
          store(to, fma(own, load(in.v + t * in.ld_v + j), load(to)));
        }
      }
    }
    ChunkRows target = c.out[member];
    const int64_t size = target.dtype == DType::kF32 ? 4 : 2;
    target.data += begin * target.stride * size;
    store_chunk_rows(out + begin, in.ld_v, c.rows, end - begin, target);
  }
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
