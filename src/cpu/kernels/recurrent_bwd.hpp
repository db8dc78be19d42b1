// SPDX-License-Identifier: Apache-2.0
#pragma once

// The backward of vector decay, row by row over strips of a state (recurrent_fwd.hpp). With X the
// gradient of the state, which runs from the last row to the first:
//
//   dq = scale S do     dk = X v     dv = X' k     X += scale q do', then row i of X is multiplied
//   by d_i
//
// What contracts over value dimensions takes a strip of key dimensions of the transposed state, so
// that no sum goes across a vector: S' forward once more for dq, X' backward for dk, X backward for
// dv. The gradient of a decay is the row sum of S times X where it acts. Such a sum gains q dq
// where q reads and loses k dk where k was written, so it is carried from row to row in double.

#include "cpu/kernels/recurrent_fwd.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// What a row does to a strip, in order.
enum class StripOrder { kDecayAddRead, kReadDecayAdd, kAddReadDecay };

/// One row of time for one strip of `depth` rows: sum of keys times values is added, `out` is the
/// sum of what `query` reads.
struct StripRow {
  int64_t depth;
  const float* decay;  ///< of each row of the strip, or of each column
  bool is_reset;       ///< some decay is 0
  const float* key;    ///< `depth` numbers; that of a further member is key_step behind
  const float* value;  ///< columns; likewise
  int64_t num_adds;
  int64_t key_step, value_step;
  const float* query;  ///< `depth` numbers
  float* out;
};

/// kIsSimple: no decay is 0, and one key and value are added.
template <StripOrder kOrder, bool kDecaysColumns, bool kIsSimple, int kVecs>
void strip_row(const StripRow& r, float* state) {
  const int64_t depth = r.depth;
  const float* keys = r.key;
  const float* queries = r.query;
  const float* decays = r.decay;
  StripVectors<kVecs> value, decay, sum;
  FLASHTILE_UNROLL
  for (int n = 0; n < kVecs; ++n) {
    value[n] = load(r.value + n * kLanes);
    decay[n] = kDecaysColumns ? load(r.decay + n * kLanes) : zero();
    sum[n] = zero();
  }
  for (int64_t i = 0; i < depth; ++i) {
    const Vf key = broadcast(keys[i]);
    const Vf query = broadcast(queries[i]);
    const Vf row_decay = kDecaysColumns ? zero() : broadcast(decays[i]);
    float* row = state + i * kStripWidth;
    FLASHTILE_UNROLL
    for (int n = 0; n < kVecs; ++n) {
      const Vf d = kDecaysColumns ? decay[n] : row_decay;
      const auto decayed = [&](Vf s) {
        return kIsSimple ? s * d : select(d == zero(), zero(), s * d);
      };
      const auto added = [&](Vf s) {
        s = fma(key, value[n], s);
        for (int64_t m = 1; m < r.num_adds && !kIsSimple; ++m) {
          s = fma(broadcast(r.key[m * r.key_step + i]),
                  load(r.value + m * r.value_step + n * kLanes), s);
        }
        return s;
      };
      Vf s = load(row + n * kLanes);
      if constexpr (kOrder == StripOrder::kDecayAddRead) {
        s = added(decayed(s));
        sum[n] = fma(query, s, sum[n]);
      } else if constexpr (kOrder == StripOrder::kReadDecayAdd) {
        sum[n] = fma(query, s, sum[n]);
        s = added(decayed(s));
      } else {
        s = added(s);
        sum[n] = fma(query, s, sum[n]);
        s = decayed(s);
      }
      store(row + n * kLanes, s);
    }
  }
  FLASHTILE_UNROLL
  for (int n = 0; n < kVecs; ++n) store(r.out + n * kLanes, sum[n]);
}

template <StripOrder kOrder, bool kDecaysColumns, int kVecs = kTileVecs>
FLASHTILE_INLINE void strip_row_of(int64_t num_vecs, const StripRow& r, float* state) {
  if (num_vecs >= kVecs) {
    const bool is_simple = !r.is_reset && r.num_adds == 1;
    if (is_simple) return strip_row<kOrder, kDecaysColumns, true, kVecs>(r, state);
    return strip_row<kOrder, kDecaysColumns, false, kVecs>(r, state);
  }
  if constexpr (kVecs > 1) strip_row_of<kOrder, kDecaysColumns, kVecs - 1>(num_vecs, r, state);
}

/// out = sum over i of query_i row i.
inline void strip_read(int64_t num_vecs, int64_t depth, const float* query, const float* state,
                       float* out) {
  for (int64_t n = 0; n < num_vecs && n < kTileVecs; ++n) {
    Vf sum = zero();
    for (int64_t i = 0; i < depth; ++i) {
      sum = fma(broadcast(query[i]), load(state + i * kStripWidth + n * kLanes), sum);
    }
    store(out + n * kLanes, sum);
  }
}

/// The inputs of a chunk as floats.
struct RecurrentBwdInputs {
  float* q;  ///< times scale; of each member
  float* dout;
  float* k;
  float* decay;
  float* v;
  float* dq;  ///< of each member, without scale
  float* dk;
  float* dv;
  float* dg;
  uint8_t* resets;
  int64_t ld_k, ld_v;
  int64_t bytes;

  RecurrentBwdInputs(char* memory, int64_t rows, int64_t head_dim, int64_t head_dim_v,
                     int64_t num_members) {
    Scratch scratch{memory};
    ld_k = whole_strips(head_dim);
    ld_v = whole_strips(head_dim_v);
    q = scratch.take<float>(num_members * rows * ld_k);
    dout = scratch.take<float>(num_members * rows * ld_v);
    k = scratch.take<float>(rows * ld_k);
    decay = scratch.take<float>(rows * ld_k);
    v = scratch.take<float>(rows * ld_v);
    dq = scratch.take<float>(num_members * rows * ld_k);
    dk = scratch.take<float>(rows * ld_k);
    dv = scratch.take<float>(rows * ld_v);
    dg = scratch.take<float>(rows * ld_k);
    resets = scratch.take<uint8_t>(rows);
    bytes = scratch.used;
  }
};

inline int64_t recurrent_bwd_scratch_bytes(int64_t max_rows, int64_t head_dim, int64_t head_dim_v,
                                           int64_t num_members) {
  return RecurrentBwdInputs(nullptr, max_rows, head_dim, head_dim_v, num_members).bytes;
}

inline void pack_bwd_inputs(const RecurrentBwdChunk& c, RecurrentBwdInputs& in) {
  for (int64_t m = 0; m < c.num_members; ++m) {
    pack_chunk_rows(c.q[m], c.rows, c.head_dim, c.scale, in.q + m * c.max_rows * in.ld_k, in.ld_k);
    pack_chunk_rows(c.dout[m], c.rows, c.head_dim_v, 1.0f, in.dout + m * c.max_rows * in.ld_v,
                    in.ld_v);
  }
  pack_chunk_rows(c.k, c.rows, c.head_dim, 1.0f, in.k, in.ld_k);
  pack_chunk_rows(c.v, c.rows, c.head_dim_v, 1.0f, in.v, in.ld_v);
  set_decays(c.g, /*is_vector_gate=*/true, c.rows, c.head_dim, in.decay, in.ld_k, in.resets);
}

/// `columns` of float rows to those of a tensor.
inline void store_strip_rows(const float* src, int64_t ld, int64_t rows, int64_t column,
                             int64_t columns, ChunkRows target) {
  if (target.data == nullptr) return;
  const int64_t size = target.dtype == DType::kF32 ? 4 : 2;
  target.data += column * target.stride * size;
  store_chunk_rows(src + column, ld, rows, columns, target);
}

/// The columns of some strips of `dim`.
struct ColumnRange {
  int64_t begin, end;

  ColumnRange(const StripRange& strips, int64_t dim) {
    begin = strips.first * kStripWidth;
    end = (strips.first + strips.count) * kStripWidth;
    if (begin > dim) begin = dim;
    if (end > dim) end = dim;
  }
};

/// The rows that a pass writes, and the inputs of the chunk that it takes next.
inline RowPrefetch recurrent_bwd_prefetch(const RecurrentBwdChunk& c, bool is_query) {
  RowPrefetch prefetch;
  const auto add_inputs = [&](const ChunkRows& rows, int64_t dim) {
    prefetch_rows(rows, c.next_begin, c.next_end, dim, &prefetch);
  };
  add_inputs(c.k, c.head_dim);
  add_inputs(c.v, c.head_dim_v);
  add_inputs(c.g, c.head_dim);
  for (int64_t m = 0; m < c.num_members; ++m) {
    add_inputs(c.q[m], c.head_dim);
    add_inputs(c.dout[m], c.head_dim_v);
    if (is_query) prefetch_rows(c.dq[m], 0, c.rows, c.head_dim, &prefetch);
  }
  if (!is_query) {
    prefetch_rows(c.dk, 0, c.rows, c.head_dim, &prefetch);
    prefetch_rows(c.dv, 0, c.rows, c.head_dim_v, &prefetch);
    prefetch_rows(c.dg, 0, c.rows, c.head_dim, &prefetch);
  }
  spread_prefetch((c.keys.count + (is_query ? 0 : c.values.count)) * c.rows, &prefetch);
  return prefetch;
}

/// dQ before the scale for all strips of key dimensions, forward over the rows.
template <StripOrder kOrder>
void query_gradients(const RecurrentBwdChunk& c, RecurrentBwdInputs& in) {
  RowPrefetch prefetch = recurrent_bwd_prefetch(c, /*is_query=*/true);
  const ColumnRange keys(c.keys, c.head_dim);
  for (int64_t column = keys.begin; column < keys.end; column += kStripWidth) {
    const int64_t num_vecs = padded(c.head_dim - column) / kLanes;
    float* state = c.state + column * c.head_dim_v;
    for (int64_t t = 0; t < c.rows; ++t) {
      prefetch.step();
      const auto read_others = [&] {
        for (int64_t m = 1; m < c.num_members; ++m) {
          const int64_t row = m * c.max_rows + t;
          strip_read(num_vecs, c.head_dim_v, in.dout + row * in.ld_v, state,
                     in.dq + row * in.ld_k + column);
        }
      };
      if (kOrder == StripOrder::kReadDecayAdd) read_others();
      const int64_t at = t * in.ld_k + column;
      strip_row_of<kOrder, true>(
          num_vecs,
          {c.head_dim_v, in.decay + at, in.resets[t] != 0, in.v + t * in.ld_v, in.k + at, 1, 0, 0,
           in.dout + t * in.ld_v, in.dq + at},
          state);
      if (kOrder != StripOrder::kReadDecayAdd) read_others();
    }
  }
}

/// dK and dV, backward over the rows.
template <StripOrder kOrder>
void key_value_gradients(const RecurrentBwdChunk& c, RecurrentBwdInputs& in) {
  RowPrefetch prefetch = recurrent_bwd_prefetch(c, /*is_query=*/false);
  const int64_t q_step = c.max_rows * in.ld_k;
  const int64_t dout_step = c.max_rows * in.ld_v;
  const ColumnRange keys(c.keys, c.head_dim);
  const ColumnRange values(c.values, c.head_dim_v);
  for (int64_t column = keys.begin; column < keys.end; column += kStripWidth) {
    const int64_t num_vecs = padded(c.head_dim - column) / kLanes;
    for (int64_t t = c.rows - 1; t >= 0; --t) {
      prefetch.step();
      const int64_t at = t * in.ld_k + column;
      strip_row_of<kOrder, true>(
          num_vecs,
          {c.head_dim_v, in.decay + at, in.resets[t] != 0, in.dout + t * in.ld_v, in.q + at,
           c.num_members, dout_step, q_step, in.v + t * in.ld_v, in.dk + at},
          c.dstate_transposed + column * c.head_dim_v);
    }
  }
  for (int64_t column = values.begin; column < values.end; column += kStripWidth) {
    const int64_t num_vecs = padded(c.head_dim_v - column) / kLanes;
    for (int64_t t = c.rows - 1; t >= 0; --t) {
      prefetch.step();
      const int64_t at = t * in.ld_v + column;
      strip_row_of<kOrder, false>(
          num_vecs,
          {c.head_dim, in.decay + t * in.ld_k, in.resets[t] != 0, in.q + t * in.ld_k, in.dout + at,
           c.num_members, q_step, dout_step, in.k + t * in.ld_k, in.dv + at},
          c.dstate + column * c.head_dim);
    }
  }
}

/// The bonus' part of dQ, per member; of dK and dV, and its own gradient.
inline void bonus_gradients(const RecurrentBwdChunk& c, bool is_query, RecurrentBwdInputs& in) {
  if (c.bonus == nullptr) return;
  const ColumnRange keys(c.keys, c.head_dim);
  const ColumnRange values(c.values, c.head_dim_v);
  for (int64_t m = 0; m < c.num_members; ++m) {
    for (int64_t t = 0; t < c.rows; ++t) {
      const int64_t row = m * c.max_rows + t;
      const float* q = in.q + row * in.ld_k;
      const float* dout = in.dout + row * in.ld_v;
      const float* k = in.k + t * in.ld_k;
      const float dot = row_dot(in.v + t * in.ld_v, dout, c.head_dim_v);
      float own = 0;
      for (int64_t i = 0; i < c.head_dim && !is_query; ++i) own += c.bonus[i] * k[i] * q[i];
      for (int64_t i = keys.begin; i < keys.end; ++i) {
        if (is_query) {
          in.dq[row * in.ld_k + i] += c.bonus[i] * k[i] * dot;
          continue;
        }
        in.dk[t * in.ld_k + i] += c.bonus[i] * q[i] * dot;
        c.dbonus[i] += static_cast<double>(q[i] * k[i] * dot);
      }
      for (int64_t j = values.begin; j < values.end && !is_query; ++j) {
        in.dv[t * in.ld_v + j] += own * dout[j];
      }
    }
  }
}

/// Forward over a chunk: dQ, and q dQ of each row for the gradient of decays.
inline void recurrent_bwd_queries(const RecurrentBwdChunk& c) {
  RecurrentBwdInputs in(c.scratch, c.max_rows, c.head_dim, c.head_dim_v, c.num_members);
  pack_bwd_inputs(c, in);
  if (c.reads_before) {
    query_gradients<StripOrder::kReadDecayAdd>(c, in);
  } else {
    query_gradients<StripOrder::kDecayAddRead>(c, in);
  }
  const ColumnRange keys(c.keys, c.head_dim);
  for (int64_t t = 0; t < c.rows; ++t) {
    for (int64_t i = keys.begin; i < keys.end; ++i) {
      float sum = 0;
      for (int64_t m = 0; m < c.num_members; ++m) {
        const int64_t at = (m * c.max_rows + t) * in.ld_k + i;
        sum += in.q[at] * in.dq[at];
      }
      c.query_sums[t * c.head_dim + i] = sum;
    }
  }
  bonus_gradients(c, /*is_query=*/true, in);
  for (int64_t m = 0; m < c.num_members; ++m) {
    float* dq = in.dq + m * c.max_rows * in.ld_k;
    for (int64_t t = 0; t < c.rows; ++t) {
      scale_row(dq + t * in.ld_k + keys.begin, keys.end - keys.begin, c.scale);
    }
    store_strip_rows(dq, in.ld_k, c.rows, keys.begin, keys.end - keys.begin, c.dq[m]);
  }
}

/// Backward over a chunk: dK, dV and the gradient of decays.
inline void recurrent_bwd_keys(const RecurrentBwdChunk& c) {
  RecurrentBwdInputs in(c.scratch, c.max_rows, c.head_dim, c.head_dim_v, c.num_members);
  pack_bwd_inputs(c, in);
  if (c.reads_before) {
    key_value_gradients<StripOrder::kReadDecayAdd>(c, in);
  } else {
    key_value_gradients<StripOrder::kAddReadDecay>(c, in);
  }
  const ColumnRange keys(c.keys, c.head_dim);
  const ColumnRange values(c.values, c.head_dim_v);
  for (int64_t t = c.rows - 1; t >= 0; --t) {
    for (int64_t i = keys.begin; i < keys.end; ++i) {
      const int64_t at = t * in.ld_k + i;
      const auto read = static_cast<double>(c.query_sums[t * c.head_dim + i]);
      const auto written = static_cast<double>(in.k[at] * in.dk[at]);
      double& passing = c.passing[i];
      if (!c.reads_before) passing += read;
      passing = in.decay[at] == 0 ? 0 : passing - written;
      in.dg[at] = static_cast<float>(passing);
      if (c.reads_before) passing += read;
    }
  }
  bonus_gradients(c, /*is_query=*/false, in);
  store_strip_rows(in.dk, in.ld_k, c.rows, keys.begin, keys.end - keys.begin, c.dk);
  store_strip_rows(in.dv, in.ld_v, c.rows, values.begin, values.end - values.begin, c.dv);
  store_strip_rows(in.dg, in.ld_k, c.rows, keys.begin, keys.end - keys.begin, c.dg);
}

/// passing[i] = the sum over value dimensions of state times dstate_transposed.
inline void recurrent_state_dots(const RecurrentBwdChunk& c) {
  const ColumnRange keys(c.keys, c.head_dim);
  for (int64_t i = keys.begin; i < keys.end; ++i) {
    const int64_t strip = i / kStripWidth * kStripWidth;
    double sum = 0;
    for (int64_t j = 0; j < c.head_dim_v; ++j) {
      const int64_t at = strip * c.head_dim_v + j * kStripWidth + i % kStripWidth;
      if (c.dstate_transposed[at] != 0) {
        sum += static_cast<double>(c.state[at]) * static_cast<double>(c.dstate_transposed[at]);
      }
    }
    c.passing[i] = sum;
  }
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
