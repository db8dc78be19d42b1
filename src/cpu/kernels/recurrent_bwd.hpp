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
// dv.
//
// The gradient of a decay is the row sum of R times X, R the decayed state. It is that of the next
// row, plus what q reads of R, minus what k was written to of Y, the gradient of S without this
// row's query. A row's own q.k times v.do is in q dq and in k dk, but in neither of these: where
// decays are strong it is far larger than the rest. So dq and dk begin as R do and Y v, which such
// sums take, carried from row to row in double, and own terms are added to them afterwards. Where q
// reads the state before a row it is the query of the row before, which is read and written here
// with that row.

#include "cpu/kernels/recurrent_fwd.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// What a row does to a strip, in order.
enum class StripOrder { kDecayAddRead, kAddDecayRead, kAddReadDecay, kReadAddDecay };

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
      } else if constexpr (kOrder == StripOrder::kAddDecayRead) {
        s = decayed(added(s));
        sum[n] = fma(query, s, sum[n]);
      } else if constexpr (kOrder == StripOrder::kReadAddDecay) {
        sum[n] = fma(query, s, sum[n]);
        s = decayed(added(s));
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

/// The inputs of a chunk as floats. Where q reads the state before a row they go on with the next
/// chunk's first row, whose query belongs to this chunk's last.
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
  float* ones;  ///< a decay, a key and a value that change nothing
  float* zeros;
  uint8_t* resets;
  int64_t ld_k, ld_v;
  int64_t member_rows;  ///< from one member to the next
  int64_t rows;         ///< of inputs
  int64_t shift;        ///< from a row to its query
  int64_t bytes;

  RecurrentBwdInputs(char* memory, int64_t max_rows, int64_t head_dim, int64_t head_dim_v,
                     int64_t num_members) {
    Scratch scratch{memory};
    ld_k = whole_strips(head_dim);
    ld_v = whole_strips(head_dim_v);
    member_rows = max_rows + 1;
    q = scratch.take<float>(num_members * member_rows * ld_k);
    dout = scratch.take<float>(num_members * member_rows * ld_v);
    k = scratch.take<float>(member_rows * ld_k);
    decay = scratch.take<float>(max_rows * ld_k);
    v = scratch.take<float>(member_rows * ld_v);
    dq = scratch.take<float>(num_members * member_rows * ld_k);
    dk = scratch.take<float>(max_rows * ld_k);
    dv = scratch.take<float>(max_rows * ld_v);
    dg = scratch.take<float>(max_rows * ld_k);
    ones = scratch.take<float>(ld_k);
    zeros = scratch.take<float>(ld_k > ld_v ? ld_k : ld_v);
    resets = scratch.take<uint8_t>(max_rows);
    bytes = scratch.used;
  }

  int64_t query_at(int64_t member, int64_t t) const { return member * member_rows + t + shift; }
};

inline int64_t recurrent_bwd_scratch_bytes(int64_t max_rows, int64_t head_dim, int64_t head_dim_v,
                                           int64_t num_members) {
  return RecurrentBwdInputs(nullptr, max_rows, head_dim, head_dim_v, num_members).bytes;
}

inline RecurrentBwdInputs pack_bwd_inputs(const RecurrentBwdChunk& c) {
  RecurrentBwdInputs in(c.scratch, c.max_rows, c.head_dim, c.head_dim_v, c.num_members);
  in.shift = c.reads_before ? 1 : 0;
  in.rows = c.rows + (c.ends_sequence ? 0 : in.shift);
  for (int64_t m = 0; m < c.num_members; ++m) {
    float* q = in.q + m * in.member_rows * in.ld_k;
    float* dout = in.dout + m * in.member_rows * in.ld_v;
    pack_chunk_rows(c.q[m], in.rows, c.head_dim, c.scale, q, in.ld_k);
    pack_chunk_rows(c.dout[m], in.rows, c.head_dim_v, 1.0f, dout, in.ld_v);
    if (in.rows == c.rows + in.shift) continue;
    fill_row(q + in.rows * in.ld_k, in.ld_k, 0);
    fill_row(dout + in.rows * in.ld_v, in.ld_v, 0);
  }
  pack_chunk_rows(c.k, in.rows, c.head_dim, 1.0f, in.k, in.ld_k);
  pack_chunk_rows(c.v, in.rows, c.head_dim_v, 1.0f, in.v, in.ld_v);
  set_decays(c.g, /*is_vector_gate=*/true, c.rows, c.head_dim, in.decay, in.ld_k, in.resets);
  fill_row(in.ones, in.ld_k, 1);
  fill_row(in.zeros, in.ld_k > in.ld_v ? in.ld_k : in.ld_v, 0);
  return in;
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

/// dQ forward or dK back of the strips that products of pairs take: a bit for each.
inline uint64_t keys_by_pairs(const RecurrentBwdChunk& c, const RecurrentBwdInputs& in,
                              bool is_back) {
  if (c.pairs == nullptr) return 0;
  const int64_t first = in.query_at(0, 0);
  RowPrefetch prefetch;
  prefetch_bwd_inputs(c, &prefetch);
  if (!is_back) prefetch_bwd_results(c, is_back, &prefetch);
  return c.pairs->bwd_keys({&prefetch,
                            is_back,
                            c.ends_sequence,
                            c.rows,
                            c.head_dim,
                            c.head_dim_v,
                            c.keys,
                            c.num_members,
                            in.q + first * in.ld_k,
                            in.member_rows * in.ld_k,
                            in.dout + first * in.ld_v,
                            in.member_rows * in.ld_v,
                            in.k,
                            in.v,
                            in.decay,
                            in.ld_k,
                            is_back ? c.dstate_transposed : c.state,
                            is_back ? in.dk : in.dq + first * in.ld_k,
                            is_back ? c.kept_behind : c.kept_before,
                            c.passing,
                            c.pairs_scratch});
}

/// R do for all strips of key dimensions, forward over the rows: dQ before the scale and without a
/// row's own key and value.
inline void query_gradients(const RecurrentBwdChunk& c, RecurrentBwdInputs& in) {
  RowPrefetch prefetch = recurrent_bwd_prefetch(c, /*is_back=*/false, c.keys.count * c.rows);
  const ColumnRange keys(c.keys, c.head_dim);
  const auto read_strip = [&](int64_t column, int64_t row) {
    strip_read(padded(c.head_dim - column) / kLanes, c.head_dim_v, in.dout + row * in.ld_v,
               c.state + column * c.head_dim_v, in.dq + row * in.ld_k + column);
  };
  for (int64_t column = keys.begin; column < keys.end; column += kStripWidth) {
    for (int64_t m = 0; m < c.num_members && c.begins_sequence && in.shift > 0; ++m) {
      read_strip(column, in.query_at(m, -1));
    }
  }
  uint64_t done = keys_by_pairs(c, in, /*is_back=*/false);
  for (int64_t column = keys.begin; column < keys.end; column += kStripWidth, done >>= 1) {
    if (done % 2 == 1) continue;
    const int64_t num_vecs = padded(c.head_dim - column) / kLanes;
    float* state = c.state + column * c.head_dim_v;
    // A row is added when the next one comes, so that each query finds the decayed state.
    const float* added_key = in.zeros;
    const float* added_value = in.zeros;
    for (int64_t t = 0; t < c.rows; ++t) {
      prefetch.step();
      const int64_t at = t * in.ld_k + column;
      const int64_t row = in.query_at(0, t);
      strip_row_of<StripOrder::kAddDecayRead, true>(
          num_vecs,
          {c.head_dim_v, in.decay + at, in.resets[t] != 0, added_value, added_key, 1, 0, 0,
           in.dout + row * in.ld_v, in.dq + row * in.ld_k + column},
          state);
      for (int64_t m = 1; m < c.num_members; ++m) read_strip(column, in.query_at(m, t));
      added_key = in.k + at;
      added_value = in.v + t * in.ld_v;
    }
    // The last state stays without its last row, as the first of the sums wants it.
    if (c.ends_sequence) continue;
    float unused[kStripWidth];
    strip_row_of<StripOrder::kAddDecayRead, true>(
        num_vecs, {c.head_dim_v, in.ones, false, added_value, added_key, 1, 0, 0, in.zeros, unused},
        state);
  }
}

/// Y v without a row's own queries, for dK, and dV, backward over the rows.
inline void key_value_gradients(const RecurrentBwdChunk& c, RecurrentBwdInputs& in) {
  RowPrefetch prefetch =
      recurrent_bwd_prefetch(c, /*is_back=*/true, (c.keys.count + c.values.count) * c.rows);
  const int64_t q_step = in.member_rows * in.ld_k;
  const int64_t dout_step = in.member_rows * in.ld_v;
  const ColumnRange keys(c.keys, c.head_dim);
  const ColumnRange values(c.values, c.head_dim_v);
  uint64_t keys_done = keys_by_pairs(c, in, /*is_back=*/true);
  for (int64_t column = keys.begin; column < keys.end; column += kStripWidth, keys_done >>= 1) {
    const int64_t num_vecs = padded(c.head_dim - column) / kLanes;
    for (int64_t t = keys_done % 2 == 1 ? -1 : c.rows - 1; t >= 0; --t) {
      prefetch.step();
      const int64_t at = t * in.ld_k + column;
      const int64_t row = in.query_at(0, t);
      strip_row_of<StripOrder::kReadAddDecay, true>(
          num_vecs,
          {c.head_dim_v, in.decay + at, in.resets[t] != 0, in.dout + row * in.ld_v,
           in.q + row * in.ld_k + column, c.num_members, dout_step, q_step, in.v + t * in.ld_v,
           in.dk + at},
          c.dstate_transposed + column * c.head_dim_v);
    }
  }
  uint64_t done = 0;
  if (c.pairs != nullptr) {
    const int64_t first = in.query_at(0, 0);
    RowPrefetch results;
    prefetch_bwd_results(c, /*is_back=*/true, &results);
    done =
        c.pairs->bwd_values({&results, c.rows, c.head_dim, c.head_dim_v, c.values, c.num_members,
                             in.q + first * in.ld_k, q_step, in.dout + first * in.ld_v, dout_step,
                             in.k, in.decay, in.ld_k, in.ld_v, c.dstate, in.dv, c.pairs_scratch});
  }
  for (int64_t column = values.begin; column < values.end; column += kStripWidth, done >>= 1) {
    const int64_t num_vecs = padded(c.head_dim_v - column) / kLanes;
    float* dstate = c.dstate + column * c.head_dim;
    for (int64_t t = done % 2 == 1 ? -1 : c.rows - 1; t >= 0; --t) {
      prefetch.step();
      const int64_t row = in.query_at(0, t);
      strip_row_of<StripOrder::kAddReadDecay, false>(
          num_vecs,
          {c.head_dim, in.decay + t * in.ld_k, in.resets[t] != 0, in.q + row * in.ld_k,
           in.dout + row * in.ld_v + column, c.num_members, q_step, dout_step, in.k + t * in.ld_k,
           in.dv + t * in.ld_v + column},
          dstate);
    }
    // What the first row reads of the initial state.
    for (int64_t m = 0; m < c.num_members && c.begins_sequence && in.shift > 0; ++m) {
      const int64_t row = in.query_at(m, -1);
      float unused[kStripWidth];
      strip_row_of<StripOrder::kAddReadDecay, false>(
          num_vecs,
          {c.head_dim, in.ones, false, in.q + row * in.ld_k, in.dout + row * in.ld_v + column, 1, 0,
           0, in.zeros, unused},
          dstate);
    }
  }
}

/// What own terms add to dQ or dK: the other one of k and q times v.do.
inline void own_gradients(const RecurrentBwdChunk& c, bool is_query, RecurrentBwdInputs& in) {
  const ColumnRange keys(c.keys, c.head_dim);
  if (keys.begin == keys.end) return;
  for (int64_t m = 0; m < c.num_members; ++m) {
    for (int64_t t = 0; t < c.rows; ++t) {
      const int64_t row = in.query_at(m, t);
      const Vf dot = broadcast(row_dot(in.v + t * in.ld_v, in.dout + row * in.ld_v, c.head_dim_v));
      const float* other = is_query ? in.k + t * in.ld_k : in.q + row * in.ld_k;
      float* to = is_query ? in.dq + row * in.ld_k : in.dk + t * in.ld_k;
      for (int64_t i = keys.begin; i < keys.end; i += kLanes) {
        store(to + i, fma(dot, load(other + i), load(to + i)));
      }
    }
  }
}

/// The bonus' part of dQ, per member; of dK and dV, and its own gradient.
inline void bonus_gradients(const RecurrentBwdChunk& c, bool is_query, RecurrentBwdInputs& in) {
  if (c.bonus == nullptr) return;
  const ColumnRange keys(c.keys, c.head_dim);
  const ColumnRange values(c.values, c.head_dim_v);
  const int64_t begin = is_query ? c.begins_sequence ? 0 : in.shift : 0;
  const int64_t end = is_query ? in.rows : c.rows;
  for (int64_t m = 0; m < c.num_members; ++m) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = m * in.member_rows + t;
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

/// Forward over a chunk: dQ, and what queries read of each row for the gradient of decays.
inline void recurrent_bwd_queries(const RecurrentBwdChunk& c) {
  RecurrentBwdInputs in = pack_bwd_inputs(c);
  query_gradients(c, in);
  const ColumnRange keys(c.keys, c.head_dim);
  for (int64_t t = 0; t < c.rows; ++t) {
    for (int64_t i = keys.begin; i < keys.end; i += kLanes) {
      Vf sum = zero();
      for (int64_t m = 0; m < c.num_members && t + in.shift < in.rows; ++m) {
        const int64_t at = in.query_at(m, t) * in.ld_k + i;
        sum = sum + load(in.q + at) * load(in.dq + at);
      }
      store_partial(c.query_sums + t * c.head_dim + i, sum, keys.end - i);
    }
  }
  own_gradients(c, /*is_query=*/true, in);
  bonus_gradients(c, /*is_query=*/true, in);
  const int64_t begin = c.begins_sequence ? 0 : in.shift;
  for (int64_t m = 0; m < c.num_members; ++m) {
    float* dq = in.dq + (m * in.member_rows + begin) * in.ld_k;
    for (int64_t t = 0; t < in.rows - begin; ++t) {
      scale_row(dq + t * in.ld_k + keys.begin, keys.end - keys.begin, c.scale);
    }
    ChunkRows target = c.dq[m];
    if (target.data != nullptr) target.data += begin * target.row_stride;
    store_strip_rows(dq, in.ld_k, in.rows - begin, keys.begin, keys.end - keys.begin, target);
  }
}

/// Backward over a chunk: dK, dV and the gradient of decays.
inline void recurrent_bwd_keys(const RecurrentBwdChunk& c) {
  RecurrentBwdInputs in = pack_bwd_inputs(c);
  key_value_gradients(c, in);
  const ColumnRange keys(c.keys, c.head_dim);
  for (int64_t t = c.rows - 1; t >= 0; --t) {
    // The state that sums begin with is without the last row.
    const bool is_written = !c.ends_sequence || t + 1 < c.rows;
    for (int64_t i = keys.begin; i < keys.end; ++i) {
      const int64_t at = t * in.ld_k + i;
      double sum = c.passing[i] + static_cast<double>(c.query_sums[t * c.head_dim + i]);
      if (is_written) sum -= static_cast<double>(in.k[at] * in.dk[at]);
      c.passing[i] = in.decay[at] == 0 ? 0 : sum;
      in.dg[at] = static_cast<float>(c.passing[i]);
    }
  }
  own_gradients(c, /*is_query=*/false, in);
  bonus_gradients(c, /*is_query=*/false, in);
  store_strip_rows(in.dk, in.ld_k, c.rows, keys.begin, keys.end - keys.begin, c.dk);
  const ColumnRange values(c.values, c.head_dim_v);
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
