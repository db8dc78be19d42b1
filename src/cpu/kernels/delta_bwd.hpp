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

#include "cpu/kernels/delta_bwd_values.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

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
