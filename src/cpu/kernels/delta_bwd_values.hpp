// SPDX-License-Identifier: Apache-2.0
#pragma once

// The passes of delta_bwd.hpp over strips of value dimensions: forward
// what corrections read, backward the gradients of values and, in the same pass, sums for dk, db.

#include "cpu/kernels/delta_bwd_inputs.hpp"
#include "cpu/simd/row_sums.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

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

}  // namespace flashtile::cpu::FLASHTILE_ISA
