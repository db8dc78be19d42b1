// SPDX-License-Identifier: Apache-2.0
#pragma once

// The backward of the delta family, row by row over strips of a state (recurrent_fwd.hpp). With R
// the decayed state, S the one behind the row and X the gradient of S:
//
//   delta     r = v - R' k, S = R + k (beta r)'      de = X' k, dv = beta de, dbeta = de.r
//             dk = X (beta r) - R dv                  X goes on as d (X - k dv')
//   low rank  x = S' a before the decay, S = R + k v' + b x'
//             dv = X' k, dx = X' b, dk = X v, db = X x, da = S dx    X goes on as d X + a dx'
//   dq = S do, and X += scale q do' before the row
//
// Sums over key dimensions take strips of value dimensions: r or x forward, then de or dv and dx
// backward; a row is kept of each. Backward the same pass sums over value dimensions for dk and db,
// across vectors. With dv or dx known the state is a sum of outer products, so that dq and R dv or
// da are sums over strips of key dimensions of the transposed state, forward.
//
// r or x are found for all rows first, and the state behind each chunk is kept, transposed and
// without what the chunk's last row adds. Then all else is done a chunk at a time, the last one
// first, so that what a chunk needs is packed once and stays in a cache.
//
// The gradient of a decay is the row sum of R times the gradient of R. It is that of the next row,
// plus what q and the next row's a read of R, minus what k and b were written to of the gradient
// without this row's q and the next row's a, minus k (R dv)', carried from row to row in double.
// What a row's own keys have to do with these readers is in q dq, a da, k dk and b db, but in none
// of the above: where decays are strong it is far larger than the rest (recurrent_bwd.hpp). It is
// added afterwards.

#include "cpu/kernels/recurrent_bwd.hpp"
#include "cpu/simd/row_sums.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// One row of time for one strip of `depth` rows, with the decay of each of its rows or columns:
/// kAdds sums of keys times values, what kReads queries read.
struct DeltaStripRow {
  int64_t depth;
  const float* decay;
  const float* key[2];    ///< `depth` numbers each
  const float* value[2];  ///< columns
  const float* query[2];  ///< `depth` numbers each
  float* sum[2];          ///< columns
};

/// Decays, makes the first kAddsBefore additions, reads, makes the rest.
template <int kAddsBefore, int kAdds, int kReads, bool kDecaysColumns, int kVecs>
void delta_strip_row(const DeltaStripRow& r, float* state) {
  const int64_t depth = r.depth;
  const float* decays = r.decay;
  const float* first_key = r.key[0];
  const float* second_key = r.key[kAdds - 1];
  const float* first_query = r.query[0];
  const float* second_query = r.query[kReads - 1];
  StripVectors<kVecs> decay, first_value, second_value, first_sum, second_sum;
  FLASHTILE_UNROLL
  for (int n = 0; n < kVecs; ++n) {
    decay[n] = kDecaysColumns ? load(r.decay + n * kLanes) : zero();
    first_value[n] = load(r.value[0] + n * kLanes);
    second_value[n] = load(r.value[kAdds - 1] + n * kLanes);
    first_sum[n] = second_sum[n] = zero();
  }
  for (int64_t i = 0; i < depth; ++i) {
    float* row = state + i * kStripWidth;
    const Vf row_decay = kDecaysColumns ? zero() : broadcast(decays[i]);
    const Vf key = broadcast(first_key[i]);
    const Vf query = broadcast(first_query[i]);
    FLASHTILE_UNROLL
    for (int n = 0; n < kVecs; ++n) {
      Vf s = load(row + n * kLanes) * (kDecaysColumns ? decay[n] : row_decay);
      if constexpr (kAddsBefore > 0) s = fma(key, first_value[n], s);
      if constexpr (kAddsBefore > 1) s = fma(broadcast(second_key[i]), second_value[n], s);
      first_sum[n] = fma(query, s, first_sum[n]);
      if constexpr (kReads > 1) second_sum[n] = fma(broadcast(second_query[i]), s, second_sum[n]);
      if constexpr (kAddsBefore == 0) s = fma(key, first_value[n], s);
      if constexpr (kAddsBefore < 2 && kAdds > 1) {
        s = fma(broadcast(second_key[i]), second_value[n], s);
      }
      store(row + n * kLanes, s);
    }
  }
  FLASHTILE_UNROLL
  for (int n = 0; n < kVecs; ++n) {
    store(r.sum[0] + n * kLanes, first_sum[n]);
    if constexpr (kReads > 1) store(r.sum[1] + n * kLanes, second_sum[n]);
  }
}

template <int kAddsBefore, int kAdds, int kReads, bool kDecaysColumns, int kVecs = kTileVecs>
FLASHTILE_INLINE void delta_strip_row_of(int64_t num_vecs, const DeltaStripRow& r, float* state) {
  if (num_vecs >= kVecs) {
    return delta_strip_row<kAddsBefore, kAdds, kReads, kDecaysColumns, kVecs>(r, state);
  }
  if constexpr (kVecs > 1) {
    delta_strip_row_of<kAddsBefore, kAdds, kReads, kDecaysColumns, kVecs - 1>(num_vecs, r, state);
  }
}

/// Lanes of vector n of row i whose decay is exactly 0; a decay for each row, or for each column.
FLASHTILE_INLINE Mf is_cleared(const float* decay, bool decays_columns, int64_t i, int n) {
  return (decays_columns ? load(decay + n * kLanes) : broadcast(decay[i])) == zero();
}

/// Decays and adds a key times a value, which `clears` leaves out where the decay is 0, whatever
/// was there.
inline void decay_strip(int64_t num_vecs, int64_t depth, const float* decay, bool decays_columns,
                        const float* key, const float* value, bool clears, float* state) {
  for (int64_t i = 0; i < depth; ++i) {
    for (int n = 0; n < num_vecs; ++n) {
      float* at = state + i * kStripWidth + n * kLanes;
      const Mf is_zero = is_cleared(decay, decays_columns, i, n);
      const Vf factor = decays_columns ? load(decay + n * kLanes) : broadcast(decay[i]);
      const Vf added = broadcast(key[i]) * load(value + n * kLanes);
      const Vf kept = select(is_zero, zero(), load(at) * factor);
      store(at, kept + select(is_zero, clears ? zero() : added, added));
    }
  }
}

/// What is decayed by exactly 0 becomes 0; all else stays.
inline void clear_strip(int64_t num_vecs, int64_t depth, const float* decay, bool decays_columns,
                        float* state) {
  for (int64_t i = 0; i < depth; ++i) {
    for (int n = 0; n < num_vecs; ++n) {
      float* at = state + i * kStripWidth + n * kLanes;
      store(at, select(is_cleared(decay, decays_columns, i, n), zero(), load(at)));
    }
  }
}

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

/// A strip of value dimensions, each row times its decay, to strips of key dimensions. What is
/// decayed by exactly 0 becomes 0.
inline void keep_transposed(const DeltaBwdChunk& c, int64_t column, int64_t num_vecs,
                            const float* decay, const float* state, float* kept) {
  for (int64_t i = 0; i < c.head_dim; i += kLanes) {
    float* strip = kept + i / kStripWidth * c.head_dim_v * kStripWidth + i % kStripWidth;
    for (int64_t n = 0; n < num_vecs; ++n) {
      const int64_t at = column + n * kLanes;
      Vu block[kLanes];
      for (int64_t r = 0; r < kLanes; ++r) {
        const bool is_kept = i + r < c.head_dim && decay[i + r] != 0;
        const float* row = state + (i + r) * kStripWidth + n * kLanes;
        block[r] = as_vu(is_kept ? load(row) * broadcast(decay[i + r]) : zero());
      }
      transpose(block);
      for (int64_t r = 0; r < kLanes && at + r < c.head_dim_v; ++r) {
        store(strip + (at + r) * kStripWidth, as_vf(block[r]));
      }
    }
  }
}

/// Forward over value strips: what the correction of each row reads, and the state behind.
inline void delta_values_forward(const DeltaBwdChunk& c) {
  DeltaBwdInputs in = pack_delta_keys(c);
  pack_delta_values(c.v, c, in.v, in.ld_v);
  RowPrefetch prefetch = delta_prefetch(c, /*is_back=*/false);
  spread_prefetch(c.num_strips * c.rows, &prefetch);
  for_each_strip(c, c.head_dim_v, c.head_dim, [&](int64_t column, int64_t num_vecs, int64_t from) {
    float* state = c.state + from;
    float sum[kStripWidth];
    strip_read(num_vecs, c.head_dim, in.correction, state, sum);
    for (int64_t t = 0; t < c.rows; ++t) {
      prefetch.step();
      const int64_t at = t * in.ld_k;
      const int64_t at_v = t * in.ld_v + column;
      const bool is_reset = in.resets[t] != 0;
      // The delta rule reads what the decay has left, low rank what was there.
      if (is_reset) {
        clear_strip(num_vecs, c.head_dim, in.decay + at, false, state);
        if (!c.is_low_rank) strip_read(num_vecs, c.head_dim, in.correction + at, state, sum);
      }
      for (int64_t j = 0; j < num_vecs * kLanes; j += kLanes) {
        const Vf x = load(sum + j);
        const Vf read = c.is_low_rank ? x : load(in.v + at_v + j) + x;
        store(c.read + at_v + j, read);
        if (!c.is_low_rank) store(in.written + at_v + j, broadcast(in.beta[t]) * read);
      }
      if (t + 1 == c.rows) {
        keep_transposed(c, column, num_vecs, in.decay + at, state, c.state_behind);
      }
      const float* next = in.correction + (t + 1 < c.rows ? t + 1 : t) * in.ld_k;
      DeltaStripRow r{};
      r.depth = c.head_dim;
      r.decay = in.decay + at;
      r.key[0] = in.k + at;
      r.query[0] = next;
      r.sum[0] = sum;
      if (c.is_low_rank) {
        r.value[0] = in.v + at_v;
        r.key[1] = in.b + at;
        r.value[1] = c.read + at_v;
        delta_strip_row_of<2, 2, 1, false>(num_vecs, r, state);
      } else {
        r.value[0] = in.written + at_v;
        delta_strip_row_of<1, 1, 1, false>(num_vecs, r, state);
      }
    }
  });
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

/// What one row hands on to those before it: a decay, and a key times a value.
struct DeltaPending {
  const float* decay;
  const float* key;
  const float* value;
};

/// One row back over a strip of value dimensions.
struct DeltaRowBack {
  int64_t depth;
  DeltaPending behind;
  const float* q;
  const float* dout;
  const float* k;
  const float* b;        ///< of low rank
  const float* value;    ///< what k was multiplied by: beta r, or v
  const float* written;  ///< of low rank, x
  float* dvalue;         ///< de, or dv
  float* dwritten;       ///< of low rank, dx
  float* dk;             ///< the part of these columns, `depth` numbers
  float* db;             ///< of low rank, likewise
};

/// Decays; adds what the row behind hands on and q dout'; for dk and db before or between that, so
/// that no row's own q is in them; de or dv and dx from all of it.
template <bool kIsLowRank, int kVecs>
void delta_row_back(const DeltaRowBack& r, float* state) {
  StripVectors<kVecs> behind, dout, value, written, dvalue, dwritten;
  FLASHTILE_UNROLL
  for (int n = 0; n < kVecs; ++n) {
    behind[n] = load(r.behind.value + n * kLanes);
    dout[n] = load(r.dout + n * kLanes);
    value[n] = load(r.value + n * kLanes);
    written[n] = kIsLowRank ? load(r.written + n * kLanes) : zero();
    dvalue[n] = dwritten[n] = zero();
  }
  for (int64_t begin = 0; begin < r.depth; begin += kLanes) {
    const int count = r.depth - begin < kLanes ? static_cast<int>(r.depth - begin) : kLanes;
    Vf dk[kLanes], db[kLanes];
    for (int i = 0; i < count; ++i) {
      const int64_t at = begin + i;
      float* row = state + at * kStripWidth;
      const Vf decay = broadcast(r.behind.decay[at]);
      const Vf key = broadcast(r.behind.key[at]);
      const Vf q = broadcast(r.q[at]);
      const Vf k = broadcast(r.k[at]);
      const Vf b = kIsLowRank ? broadcast(r.b[at]) : zero();
      Vf dk_sum = zero();
      Vf db_sum = zero();
      FLASHTILE_UNROLL
      for (int n = 0; n < kVecs; ++n) {
        Vf s = load(row + n * kLanes) * decay;
        if constexpr (kIsLowRank) {
          dk_sum = fma(value[n], s, dk_sum);
          db_sum = fma(written[n], s, db_sum);
        }
        s = fma(key, behind[n], s);
        if constexpr (!kIsLowRank) dk_sum = fma(value[n], s, dk_sum);
        s = fma(q, dout[n], s);
        dvalue[n] = fma(k, s, dvalue[n]);
        if constexpr (kIsLowRank) dwritten[n] = fma(b, s, dwritten[n]);
        store(row + n * kLanes, s);
      }
      dk[i] = dk_sum;
      if constexpr (kIsLowRank) db[i] = db_sum;
    }
    for (int i = count; i < kLanes; ++i) dk[i] = db[i] = zero();
    store(r.dk + begin, row_sums(dk));
    if constexpr (kIsLowRank) store(r.db + begin, row_sums(db));
  }
  FLASHTILE_UNROLL
  for (int n = 0; n < kVecs; ++n) {
    store(r.dvalue + n * kLanes, dvalue[n]);
    if constexpr (kIsLowRank) store(r.dwritten + n * kLanes, dwritten[n]);
  }
}

template <bool kIsLowRank, int kVecs = kTileVecs>
FLASHTILE_INLINE void delta_row_back_of(int64_t num_vecs, const DeltaRowBack& r, float* state) {
  if (num_vecs >= kVecs) return delta_row_back<kIsLowRank, kVecs>(r, state);
  if constexpr (kVecs > 1) delta_row_back_of<kIsLowRank, kVecs - 1>(num_vecs, r, state);
}

/// Row t + 1 of dx, also of the chunk behind; null behind the sequence.
inline const float* dread_behind(const DeltaBwdChunk& c, const DeltaBwdInputs& in, int64_t t) {
  return c.ends_sequence && t + 1 == c.rows ? nullptr : c.dread + (t + 1) * in.ld_v;
}

/// Backward over value strips: de, or dv and dx, and their parts of dk and db.
inline void delta_values_backward(const DeltaBwdChunk& c) {
  DeltaBwdInputs in = pack_delta_inputs(c);
  RowPrefetch prefetch = delta_prefetch(c, /*is_back=*/true);
  if (c.is_low_rank) prefetch_rows(c.dv_rows, 0, c.rows, c.head_dim_v, &prefetch);
  spread_prefetch(c.num_strips * c.rows, &prefetch);
  const DeltaPending none{in.ones, in.zeros, in.zeros};
  for_each_strip(c, c.head_dim_v, c.head_dim, [&](int64_t column, int64_t num_vecs, int64_t from) {
    float* state = c.state + from;
    // Of low rank a dx' of the row behind stands behind what is read for dk and db.
    DeltaPending pending = none;
    if (c.is_low_rank && !c.ends_sequence) {
      pending.key = in.correction + c.rows * in.ld_k;
      pending.value = dread_behind(c, in, c.rows - 1) + column;
    }
    for (int64_t t = c.rows - 1; t >= 0; --t) {
      prefetch.step();
      const int64_t at = t * in.ld_k;
      const int64_t at_v = t * in.ld_v + column;
      const int64_t at_part = column / kStripWidth * c.part_stride + at;
      DeltaRowBack r{};
      r.depth = c.head_dim;
      r.behind = pending;
      r.q = in.q + at;
      r.dout = in.dout + at_v;
      r.k = in.k + at;
      r.dk = c.dk_parts + at_part;
      if (c.is_low_rank) {
        r.b = in.b + at;
        r.value = in.v + at_v;
        r.written = in.written + at_v;
        r.dvalue = in.dv + at_v;
        r.dwritten = c.dread + at_v;
        r.db = c.db_parts + at_part;
        delta_row_back_of<true>(num_vecs, r, state);
        pending = {in.decay + at, in.correction + at, c.dread + at_v};
        if (t > 0 && in.resets[t] == 0) continue;
        const bool is_done = t == 0 && c.begins_sequence;
        decay_strip(num_vecs, c.head_dim, pending.decay, false, is_done ? pending.key : in.zeros,
                    is_done ? pending.value : in.zeros, false, state);
        pending.decay = in.ones;
        continue;
      }
      r.value = in.written + at_v;
      r.dvalue = c.dread + at_v;
      delta_row_back_of<false>(num_vecs, r, state);
      for (int64_t j = at_v; j < at_v + num_vecs * kLanes; j += kLanes) {
        store(in.dwritten + j, broadcast(in.beta[t]) * load(c.dread + j));
      }
      pending = {in.decay + at, in.correction + at, in.dwritten + at_v};
      if (t > 0 && in.resets[t] == 0) continue;
      decay_strip(num_vecs, c.head_dim, pending.decay, false, pending.key, pending.value, true,
                  state);
      pending = none;
    }
    if (c.is_low_rank) {
      store_strip_rows(in.dv, in.ld_v, c.rows, column, columns_left(c.head_dim_v, column),
                       c.dv_rows);
    }
  });
}

/// Forward over a key strip: what queries read of the decayed state, for dq, and -R dv, or what a
/// reads, for da.
inline void delta_keys_strip(const DeltaBwdChunk& c, const DeltaBwdInputs& in, int64_t column,
                             int64_t num_vecs, float* state, RowPrefetch* prefetch) {
  if (c.is_low_rank) strip_read(num_vecs, c.head_dim_v, c.dread, state, c.dkeys + column);
  if (!c.begins_sequence) {
    const auto add = [&](const float* key, const float* value) {
      decay_strip(num_vecs, c.head_dim_v, in.ones, true, key, value + column, false, state);
    };
    add(in.v_before, in.k_before);
    if (c.is_low_rank) add(c.read - in.ld_v, in.b_before);
  }
  for (int64_t t = 0; t < c.rows; ++t) {
    prefetch->step();
    const int64_t at = t * in.ld_k + column;
    const int64_t at_v = t * in.ld_v;
    if (in.resets[t] != 0) clear_strip(num_vecs, c.head_dim_v, in.decay + at, true, state);
    DeltaStripRow r{};
    float read[kStripWidth];
    r.depth = c.head_dim_v;
    r.decay = in.decay + at;
    r.key[0] = (c.is_low_rank ? in.v : in.written) + at_v;
    r.value[0] = in.k + at;
    r.query[0] = in.dout + at_v;
    r.sum[0] = c.dq + at;
    if (c.is_low_rank) {
      const bool has_next = t + 1 < c.rows;
      r.key[1] = in.written + at_v;
      r.value[1] = in.b + at;
      r.query[1] = has_next ? c.dread + at_v + in.ld_v : in.zeros;
      r.sum[1] = has_next ? c.dkeys + at + in.ld_k : read;
      delta_strip_row_of<0, 2, 2, true>(num_vecs, r, state);
      continue;
    }
    r.query[1] = in.dwritten + at_v;
    r.sum[1] = read;
    delta_strip_row_of<0, 1, 2, true>(num_vecs, r, state);
    for (int64_t j = 0; j < num_vecs * kLanes; j += kLanes) {
      store(c.dkeys + at + j, zero() - load(read + j));
    }
  }
}

/// False for the sequence's last row, which the state that sums begin with does not have.
inline bool is_in_passing(const DeltaBwdChunk& c, int64_t t) {
  return !c.ends_sequence || t + 1 < c.rows;
}

/// One decay for a head: the part of these columns.
inline void head_gate_gradients(const DeltaBwdChunk& c, const DeltaBwdInputs& in, int64_t column) {
  const int64_t columns = columns_left(c.head_dim, column);
  const int64_t num_strips = in.ld_k / kStripWidth;
  double passing = c.passing[column];
  for (int64_t t = c.rows - 1; t >= 0; --t) {
    const int64_t at = t * in.ld_k + column;
    const auto dot = [&](const float* x, const float* dx) {
      return static_cast<double>(row_dot(x + at, dx + at, columns));
    };
    passing += dot(in.q, c.dq) + dot(in.k, c.dkeys);
    if (is_in_passing(c, t)) passing -= dot(in.k, in.dk);
    if (in.resets[t] != 0) passing = 0;
    c.gate_sums[t * num_strips + column / kStripWidth] = passing;
  }
  c.passing[column] = passing;
}

/// One decay for each of these columns.
template <bool kIsLowRank>
void vector_gate_gradients(const DeltaBwdChunk& c, const DeltaBwdInputs& in, int64_t column) {
  const int64_t columns = columns_left(c.head_dim, column);
  double* __restrict passing = c.passing + column;
  for (int64_t t = c.rows - 1; t >= 0; --t) {
    const int64_t at = t * in.ld_k + column;
    const float* q = in.q + at;
    const float* k = in.k + at;
    const float* dq = c.dq + at;
    const float* dk = in.dk + at;
    const float* dkeys = c.dkeys + at;
    const float* a = in.correction + at;
    const float* b = in.b + at;
    const float* db = in.db + at;
    const float* decay = in.decay + at;
    float* __restrict dg = in.dg + at;
    const float written = is_in_passing(c, t) ? 1.0f : 0.0f;
    for (int64_t i = 0; i < columns; ++i) {
      double sum = passing[i] + static_cast<double>(q[i] * dq[i]);
      sum -= static_cast<double>(written * (k[i] * dk[i]));
      sum += static_cast<double>(kIsLowRank ? -(written * (b[i] * db[i])) : k[i] * dkeys[i]);
      sum = decay[i] == 0 ? 0 : sum;
      dg[i] = static_cast<float>(sum);
      passing[i] = kIsLowRank ? sum + static_cast<double>(a[i] * dkeys[i]) : sum;
    }
  }
}

/// to += factor x over some columns.
inline void add_scaled_row(const float* x, float factor, int64_t columns, float* to) {
  for (int64_t i = 0; i < columns; i += kLanes) {
    store(to + i, fma(broadcast(factor), load(x + i), load(to + i)));
  }
}

/// What a row's own keys have to do with its query, and of low rank with the next row's a.
inline void add_own_gradients(const DeltaBwdChunk& c, const DeltaBwdInputs& in, int64_t column) {
  const int64_t columns = columns_left(c.head_dim, column);
  const auto dot = [&](const float* x, const float* y) { return row_dot(x, y, c.head_dim_v); };
  for (int64_t t = 0; t < c.rows; ++t) {
    const int64_t at = t * in.ld_k + column;
    const float* dout = in.dout + t * in.ld_v;
    const float* written = in.written + t * in.ld_v;
    if (!c.is_low_rank) {
      const float own = dot(written, dout);
      add_scaled_row(in.k + at, own, columns, c.dq + at);
      add_scaled_row(in.q + at, own, columns, in.dk + at);
      continue;
    }
    const float* v = in.v + t * in.ld_v;
    const float own_v = dot(v, dout);
    const float own_x = dot(written, dout);
    add_scaled_row(in.k + at, own_v, columns, c.dq + at);
    add_scaled_row(in.b + at, own_x, columns, c.dq + at);
    add_scaled_row(in.q + at, own_v, columns, in.dk + at);
    add_scaled_row(in.q + at, own_x, columns, in.db + at);
    if (const float* behind = dread_behind(c, in, t)) {
      add_scaled_row(in.correction + at + in.ld_k, dot(v, behind), columns, in.dk + at);
      add_scaled_row(in.correction + at + in.ld_k, dot(written, behind), columns, in.db + at);
    }
    if (t == 0 && c.begins_sequence) continue;
    const float* dread = c.dread + t * in.ld_v;
    const float* k = t > 0 ? in.k + at - in.ld_k : in.k_before + column;
    const float* b = t > 0 ? in.b + at - in.ld_k : in.b_before + column;
    add_scaled_row(k, dot(t > 0 ? v - in.ld_v : in.v_before, dread), columns, c.dkeys + at);
    add_scaled_row(b, dot(written - in.ld_v, dread), columns, c.dkeys + at);
  }
}

/// The gradient of decays of one strip of a chunk, and sums of dq and dk.
inline void finish_delta_strip(const DeltaBwdChunk& c, const DeltaBwdInputs& in, int64_t column) {
  const int64_t columns = columns_left(c.head_dim, column);
  if (c.g.data != nullptr && !c.is_vector_gate) {
    head_gate_gradients(c, in, column);
  } else if (c.g.data != nullptr && c.is_low_rank) {
    vector_gate_gradients<true>(c, in, column);
  } else if (c.g.data != nullptr) {
    vector_gate_gradients<false>(c, in, column);
  }
  add_own_gradients(c, in, column);
  if (c.is_vector_gate) store_strip_rows(in.dg, in.ld_k, c.rows, column, columns, c.dg_rows);
  if (c.is_low_rank) {
    store_strip_rows(c.dkeys, in.ld_k, c.rows, column, columns, c.da_rows);
    store_strip_rows(in.db, in.ld_k, c.rows, column, columns, c.db_rows);
  }
  for (int64_t t = 0; t < c.rows; ++t) {
    for (int64_t i = column; i < column + columns; i += kLanes) {
      const int64_t at = t * in.ld_k + i;
      const Vf dk = c.is_low_rank ? load(in.dk + at) : load(in.dk + at) + load(c.dkeys + at);
      const Vf dq = load(c.dq + at);
      store(c.dk_sum + at, c.is_first ? dk : load(c.dk_sum + at) + dk);
      store(c.dq_sum + at, c.is_first ? dq : load(c.dq_sum + at) + dq);
    }
  }
}

/// What strips of value dimensions have found of dk or db, for some columns.
inline void add_parts(const DeltaBwdChunk& c, const float* parts, int64_t column, int64_t ld,
                      float* sum) {
  const int64_t end = column + padded(columns_left(c.head_dim, column));
  for (int64_t t = 0; t < c.rows; ++t) {
    for (int64_t i = t * ld + column; i < t * ld + end; i += kLanes) {
      Vf x = load(parts + i);
      for (int64_t j = kStripWidth; j < c.head_dim_v; j += kStripWidth) {
        x = x + load(parts + j / kStripWidth * c.part_stride + i);
      }
      store(sum + i, x);
    }
  }
}

/// Over key strips: dq, dk, da, db and the gradient of decays.
inline void delta_keys_backward(const DeltaBwdChunk& c) {
  DeltaBwdInputs in(c.scratch, c.max_rows, c.head_dim, c.head_dim_v);
  if (!c.is_packed) in = pack_delta_inputs(c);
  for (int64_t t = 0; t < c.rows && !c.is_low_rank && !c.is_packed; ++t) {
    scale_value_row(c, in.beta[t], c.dread + t * in.ld_v, in.dwritten + t * in.ld_v);
  }
  if (c.is_low_rank) in.written = c.read;
  RowPrefetch prefetch;
  prefetch_rows(c.dq_rows, 0, c.rows, c.head_dim, &prefetch);
  prefetch_rows(c.dk_rows, 0, c.rows, c.head_dim, &prefetch);
  if (!c.is_low_rank) prefetch_rows(c.dv_rows, 0, c.rows, c.head_dim_v, &prefetch);
  if (c.is_vector_gate) prefetch_rows(c.dg_rows, 0, c.rows, c.head_dim, &prefetch);
  prefetch_rows(c.da_rows, 0, c.rows, c.head_dim, &prefetch);
  prefetch_rows(c.db_rows, 0, c.rows, c.head_dim, &prefetch);
  spread_prefetch(c.num_strips * c.rows, &prefetch);
  for_each_strip(c, c.head_dim, c.head_dim_v, [&](int64_t column, int64_t num_vecs, int64_t at) {
    delta_keys_strip(c, in, column, num_vecs, c.state + at, &prefetch);
    add_parts(c, c.dk_parts, column, in.ld_k, in.dk);
    if (c.is_low_rank) add_parts(c, c.db_parts, column, in.ld_k, in.db);
    finish_delta_strip(c, in, column);
  });
}

/// Of the state behind the sequence, without what its last row adds, and its gradient. Where a head
/// has one decay the sum of a strip is in its first place.
inline void delta_state_dots(const DeltaBwdChunk& c) {
  for (int64_t n = c.first_strip; n < c.first_strip + c.num_strips; ++n) {
    const int64_t column = n * kStripWidth;
    double head_sum = 0;
    for (int64_t i = 0; i < columns_left(c.head_dim, column); ++i) {
      double sum = 0;
      for (int64_t j = 0; j < c.head_dim_v; ++j) {
        const int64_t at = (n * c.head_dim_v + j) * kStripWidth + i;
        if (c.dstate[at] == 0) continue;
        sum += static_cast<double>(c.state[at]) * static_cast<double>(c.dstate[at]);
      }
      c.passing[column + i] = sum;
      head_sum += sum;
    }
    if (!c.is_vector_gate) c.passing[column] = head_sum;
  }
}

/// dv and dbeta of the delta rule, and the gradient of a head's decay.
inline void delta_finish_state(const DeltaBwdChunk& c) {
  DeltaBwdInputs in(c.scratch, c.max_rows, c.head_dim, c.head_dim_v);
  const int64_t num_strips = in.ld_k / kStripWidth;
  if (c.g.data != nullptr && !c.is_vector_gate) {
    for (int64_t t = 0; t < c.rows; ++t) {
      double sum = 0;
      for (int64_t n = 0; n < num_strips; ++n) sum += c.gate_sums[t * num_strips + n];
      in.dg[t] = static_cast<float>(sum);
    }
    store_chunk_rows(in.dg, 1, c.rows, 1, c.dg_rows);
  }
  if (c.is_low_rank) return;
  pack_chunk_rows(c.beta, c.rows, 1, 1.0f, in.beta, 1);
  for (int64_t t = 0; t < c.rows; ++t) {
    const float* read = c.read + t * in.ld_v;
    const float* dread = c.dread + t * in.ld_v;
    in.dg[t] = row_dot(read, dread, c.head_dim_v);
    for (int64_t j = 0; j < c.head_dim_v; j += kLanes) {
      store(in.v + t * in.ld_v + j, broadcast(in.beta[t]) * load(dread + j));
    }
  }
  store_chunk_rows(in.v, in.ld_v, c.rows, c.head_dim_v, c.dv_rows);
  store_chunk_rows(in.dg, 1, c.rows, 1, c.dbeta_rows);
}

/// Takes the gradient of x / sqrt(x.x + 1e-6) back to x.
inline void normalize_row_gradient(const float* x, float* gradient, int64_t dim) {
  const float factor = 1.0f / __builtin_sqrtf(row_dot(x, x, dim) + 1e-6f);
  const float along = factor * factor * row_dot(x, gradient, dim);
  for (int64_t i = 0; i < dim; i += kLanes) {
    const Vf rest = fnma(broadcast(along), load(x + i), load(gradient + i));
    store(gradient + i, broadcast(factor) * rest);
  }
}

inline void finish_delta_rows(const DeltaBwdChunk& c, const ChunkRows& input, float scale,
                              float* packed, float* gradient, int64_t ld, const ChunkRows& target) {
  if (target.data == nullptr) return;
  if (c.normalizes) pack_chunk_rows(input, c.rows, c.head_dim, 1.0f, packed, ld);
  for (int64_t t = 0; t < c.rows; ++t) {
    scale_row(gradient + t * ld, c.head_dim, scale);
    if (c.normalizes) normalize_row_gradient(packed + t * ld, gradient + t * ld, c.head_dim);
  }
  store_chunk_rows(gradient, ld, c.rows, c.head_dim, target);
}

inline void delta_finish_keys(const DeltaBwdChunk& c) {
  DeltaBwdInputs in(c.scratch, c.max_rows, c.head_dim, c.head_dim_v);
  finish_delta_rows(c, c.q, c.scale, in.q, c.dq_sum, in.ld_k, c.dq_rows);
  finish_delta_rows(c, c.k, 1.0f, in.k, c.dk_sum, in.ld_k, c.dk_rows);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
