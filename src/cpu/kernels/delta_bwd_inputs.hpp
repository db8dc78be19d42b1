// SPDX-License-Identifier: Apache-2.0
#pragma once

// The inputs that the passes of delta_bwd.hpp share, as floats, packed
// once for each chunk.

#include "cpu/kernels/delta_strips.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// The inputs of a chunk as floats.
struct DeltaBwdInputs {
  float* q;  ///< times scale
  float* k;
  float* decay;
  /// What the correction reads the state with: -d k, or a, that with the row behind the chunk.
  float* correction;
  float* b;
  float* v;
  float* dout;
  float* beta;
  float* written;   ///< beta r; x of low rank stays where it is
  float* dwritten;  ///< dv; dx of low rank likewise
  float* dv;        ///< of low rank
  float* dk;
  float* db;
  float* dg;
  float* k_before;  ///< of low rank, the row before the chunk: k, b, v
  float* b_before;
  float* v_before;
  float* ones;  ///< a decay, a key and a value that change nothing
  float* zeros;
  uint8_t* resets;
  int64_t ld_k, ld_v;
  int64_t bytes;

  DeltaBwdInputs(char* memory, int64_t rows, int64_t head_dim, int64_t head_dim_v) {
    Scratch scratch{memory};
    ld_k = whole_strips(head_dim);
    ld_v = whole_strips(head_dim_v);
    const int64_t longest = ld_k > ld_v ? ld_k : ld_v;
    correction = scratch.take<float>((rows + 1) * ld_k);
    for (float** block : {&q, &k, &decay, &b, &dk, &db, &dg}) {
      *block = scratch.take<float>(rows * ld_k);
    }
    for (float** block : {&v, &dout, &written, &dwritten, &dv}) {
      *block = scratch.take<float>(rows * ld_v);
    }
    beta = scratch.take<float>(rows);
    k_before = scratch.take<float>(ld_k);
    b_before = scratch.take<float>(ld_k);
    v_before = scratch.take<float>(ld_v);
    ones = scratch.take<float>(longest);
    zeros = scratch.take<float>(longest);
    resets = scratch.take<uint8_t>(rows);
    bytes = scratch.used;
  }
};

inline int64_t delta_bwd_scratch_bytes(int64_t max_rows, int64_t head_dim, int64_t head_dim_v) {
  return DeltaBwdInputs(nullptr, max_rows, head_dim, head_dim_v).bytes;
}

/// What all passes need: k, decays, what corrections read with.
inline DeltaBwdInputs pack_delta_keys(const DeltaBwdChunk& c) {
  DeltaBwdInputs in(c.scratch, c.max_rows, c.head_dim, c.head_dim_v);
  const int64_t ld = in.ld_k;
  pack_chunk_rows(c.k, c.rows, c.head_dim, 1.0f, in.k, ld);
  if (c.normalizes) normalize_rows(c.rows, c.head_dim, 1.0f, in.k, ld);
  set_decays(c.g, c.is_vector_gate, c.rows, c.head_dim, in.decay, ld, in.resets);
  if (c.is_low_rank) {
    pack_chunk_rows(c.a, c.rows + (c.ends_sequence ? 0 : 1), c.head_dim, 1.0f, in.correction, ld);
    pack_chunk_rows(c.b, c.rows, c.head_dim, 1.0f, in.b, ld);
  } else {
    pack_chunk_rows(c.beta, c.rows, 1, 1.0f, in.beta, 1);
    for (int64_t t = 0; t < c.rows; ++t) {
      for (int64_t i = t * ld; i < t * ld + c.head_dim; i += kLanes) {
        store(in.correction + i, -(load(in.decay + i) * load(in.k + i)));
      }
    }
  }
  const int64_t longest = ld > in.ld_v ? ld : in.ld_v;
  fill_row(in.ones, longest, 1);
  fill_row(in.zeros, longest, 0);
  return in;
}

inline void pack_delta_queries(const DeltaBwdChunk& c, DeltaBwdInputs& in) {
  pack_chunk_rows(c.q, c.rows, c.head_dim, c.normalizes ? 1.0f : c.scale, in.q, in.ld_k);
  if (c.normalizes) normalize_rows(c.rows, c.head_dim, c.scale, in.q, in.ld_k);
}

inline void pack_delta_values(const ChunkRows& source, const DeltaBwdChunk& c, float* to,
                              int64_t ld) {
  pack_chunk_rows(source, c.rows, c.head_dim_v, 1.0f, to, ld);
}

/// The inputs of the chunk that a pass takes next.
inline RowPrefetch delta_prefetch(const DeltaBwdChunk& c, bool is_back) {
  RowPrefetch prefetch;
  const DeltaBwdChunk* next = c.next;
  if (next == nullptr) return prefetch;
  const auto add_inputs = [&](const ChunkRows& rows, int64_t dim) {
    prefetch_rows(rows, 0, next->rows, dim, &prefetch);
  };
  add_inputs(next->k, c.head_dim);
  if (c.is_vector_gate) add_inputs(next->g, c.head_dim);
  add_inputs(next->a, c.head_dim);
  add_inputs(next->b, c.head_dim);
  if (!is_back || c.is_low_rank) add_inputs(next->v, c.head_dim_v);
  if (!is_back) return prefetch;
  add_inputs(next->q, c.head_dim);
  add_inputs(next->dout, c.head_dim_v);
  return prefetch;
}

inline int64_t columns_left(int64_t dim, int64_t column) {
  return dim - column < kStripWidth ? dim - column : kStripWidth;
}

/// Calls body(column, num_vecs, offset) for each strip of `dim` columns, that many floats into
/// strips of `depth` rows.
template <class Body>
FLASHTILE_INLINE void for_each_strip(const DeltaBwdChunk& c, int64_t dim, int64_t depth,
                                     const Body& body) {
  for (int64_t n = c.first_strip; n < c.first_strip + c.num_strips; ++n) {
    const int64_t column = n * kStripWidth;
    body(column, padded(columns_left(dim, column)) / kLanes, n * depth * kStripWidth);
  }
}

/// beta times a kept row.
inline void scale_value_row(const DeltaBwdChunk& c, float beta, const float* from, float* to) {
  for (int64_t j = 0; j < c.head_dim_v; j += kLanes) {
    store(to + j, broadcast(beta) * load(from + j));
  }
}

/// What the row before the chunk adds: its k, and of low rank b and v. The delta rule's v is beta
/// r.
inline void pack_row_before(const DeltaBwdChunk& c, DeltaBwdInputs& in) {
  if (c.begins_sequence) return;
  const auto pack = [](ChunkRows rows, int64_t dim, float* to, int64_t ld) {
    rows.data -= rows.row_stride;
    pack_chunk_rows(rows, 1, dim, 1.0f, to, ld);
  };
  pack(c.k, c.head_dim, in.k_before, in.ld_k);
  if (c.is_low_rank) {
    pack(c.b, c.head_dim, in.b_before, in.ld_k);
    pack(c.v, c.head_dim_v, in.v_before, in.ld_v);
    return;
  }
  if (c.normalizes) normalize_rows(1, c.head_dim, 1.0f, in.k_before, in.ld_k);
  float beta = 0;
  pack(c.beta, 1, &beta, 1);
  scale_value_row(c, beta, c.read - in.ld_v, in.v_before);
}

/// All that the passes back need but what they find.
inline DeltaBwdInputs pack_delta_inputs(const DeltaBwdChunk& c) {
  DeltaBwdInputs in = pack_delta_keys(c);
  pack_delta_queries(c, in);
  pack_delta_values(c.dout, c, in.dout, in.ld_v);
  pack_row_before(c, in);
  if (c.is_low_rank) {
    pack_delta_values(c.v, c, in.v, in.ld_v);
    in.written = c.read;
    return in;
  }
  for (int64_t t = 0; t < c.rows; ++t) {
    scale_value_row(c, in.beta[t], c.read + t * in.ld_v, in.written + t * in.ld_v);
  }
  return in;
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
