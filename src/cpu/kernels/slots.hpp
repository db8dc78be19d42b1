// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gated slot attention: two recurrences of vector decay with a softmax over slots between them,
//
//   Sk = Sk Diag(d) + k s'    l = Sk' (scale q)    p = softmax(l)    Sv = Diag(d) Sv + s v'
//   o = Sv' p
//
// row by row over strips, each sum over strips of what it does not sum over (recurrent_bwd.hpp), so
// that none crosses a vector. Backward, with Xk and Xv the gradients of Sk and Sv:
//
//   dp = Sv do, dl = p (dp - p.dp), dq = scale Sk dl          forward over the rows
//   ds = Xk' k + Xv v, dk = Xk s, dv = Xv' s                  back, where Xk += scale q dl' and
//                                                             Xv += p do' come before a row
//
// The gradient of a decay is what a slot's states and their gradients have in common where it acts:
// it gains l dl and p dp where they are read, loses s ds where they were written, and goes from row
// to row in double. What a row's own k, v and s have to do with its q and do is left out of both
// (recurrent_bwd.hpp): l, dp and ds begin without it.

#include "cpu/kernels/slots_pairs.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// All rows of a chunk over a state: it decays, gains key times value, and each member reads it.
template <bool kDecaysColumns>
void slots_forward(const SlotsChunk& c, const SlotsInputs& in, int64_t depth, int64_t dim,
                   const SlotsOperand& key, const SlotsOperand& value, const SlotsOperand& query,
                   const SlotsOperand& out, float* state, RowPrefetch& prefetch) {
  spread_prefetch(strips_of(dim).count * c.rows, &prefetch);
  for (int64_t column = 0; column < dim; column += kStripWidth) {
    const int64_t num_vecs = padded(dim - column) / kLanes;
    float* strip = state + column * depth;
    for (int64_t t = 0; t < c.rows; ++t) {
      prefetch.step();
      const float* decay = in.decay + t * in.ld_m + (kDecaysColumns ? column : 0);
      strip_row_of<StripOrder::kDecayAddRead, kDecaysColumns>(
          num_vecs,
          {depth, decay, in.resets[t] != 0, key.row(t), value.row(t) + column, 1, 0, 0,
           query.row(t), out.row(t) + column},
          strip);
      for (int64_t m = 1; m < c.num_members; ++m) {
        strip_read(num_vecs, depth, query.row(t, m), strip, out.row(t, m) + column);
      }
    }
  }
}

/// Likewise for columns of slots, but each member reads what the decay has left. A row is added
/// when the next one comes; the sequence's last one is not, as the first of a gate's sums wants it.
inline void slots_read_decayed(const SlotsChunk& c, const SlotsInputs& in, int64_t depth,
                               const SlotsOperand& key, const SlotsOperand& query,
                               const SlotsOperand& out, float* state, uint16_t* kept,
                               RowPrefetch& prefetch) {
  uint64_t done = read_slots_by_pairs(c, in, depth, key, query, out, state, kept, &prefetch);
  spread_prefetch(strips_of(c.num_slots).count * c.rows, &prefetch);
  for (int64_t column = 0; column < c.num_slots; column += kStripWidth, done >>= 1) {
    if (done % 2 == 1) continue;
    const int64_t num_vecs = padded(c.num_slots - column) / kLanes;
    float* strip = state + column * depth;
    const float* added_key = in.zeros;
    const float* added_value = in.zeros;
    const auto step = [&](const float* decay, bool is_reset, const float* by, float* to) {
      strip_row_of<StripOrder::kAddDecayRead, true>(
          num_vecs, {depth, decay, is_reset, added_key, added_value, 1, 0, 0, by, to}, strip);
    };
    for (int64_t t = 0; t < c.rows; ++t) {
      prefetch.step();
      const int64_t at = t * in.ld_m + column;
      step(in.decay + at, in.resets[t] != 0, query.row(t), out.row(t) + column);
      for (int64_t m = 1; m < c.num_members; ++m) {
        strip_read(num_vecs, depth, query.row(t, m), strip, out.row(t, m) + column);
      }
      added_key = key.row(t);
      added_value = in.s + at;
    }
    float unused[kStripWidth];
    if (!c.ends_sequence) step(in.ones, false, in.zeros, unused);
  }
}

/// All rows back over the gradient of a state: it gains each member's key times value, is read, and
/// decays, in this or another order. Strips that are done are left out.
template <StripOrder kOrder, bool kDecaysColumns>
void slots_backward(const SlotsChunk& c, const SlotsInputs& in, int64_t depth, int64_t dim,
                    const SlotsOperand& key, const SlotsOperand& value, const SlotsOperand& query,
                    const SlotsOperand& out, float* state, uint64_t done, RowPrefetch& prefetch) {
  spread_prefetch(strips_of(dim).count * c.rows, &prefetch);
  for (int64_t column = 0; column < dim; column += kStripWidth, done >>= 1) {
    if (done % 2 == 1) continue;
    const int64_t num_vecs = padded(dim - column) / kLanes;
    for (int64_t t = c.rows - 1; t >= 0; --t) {
      prefetch.step();
      const float* decay = in.decay + t * in.ld_m + (kDecaysColumns ? column : 0);
      strip_row_of<kOrder, kDecaysColumns>(
          num_vecs,
          {depth, decay, in.resets[t] != 0, key.row(t), value.row(t) + column, c.num_members,
           key.step, value.step, query.row(t), out.row(t) + column},
          state + column * depth);
    }
  }
}

/// p of each member.
inline void slots_softmax(const SlotsChunk& c, const SlotsOperand& logits,
                          const SlotsOperand& weights) {
  for (int64_t m = 0; m < c.num_members; ++m) {
    for (int64_t t = 0; t < c.rows; ++t) {
      const float* l = logits.row(t, m);
      const float top = row_max_of(l, c.num_slots, -__builtin_inff());
      const float sum = exp_row<Exp>(l, c.num_slots, top, weights.row(t, m));
      scale_row(weights.row(t, m), c.num_slots, 1.0f / sum);
      fill_row(weights.row(t, m) + padded(c.num_slots), weights.ld - padded(c.num_slots), 0);
    }
  }
}

/// to = decayed + s (x.y) for each member, x and y what of the row meets in a state.
inline void slots_add_own(const SlotsChunk& c, const SlotsInputs& in, const SlotsOperand& x,
                          const SlotsOperand& y, int64_t dim, const SlotsOperand& decayed,
                          const SlotsOperand& to) {
  for (int64_t m = 0; m < c.num_members; ++m) {
    for (int64_t t = 0; t < c.rows; ++t) {
      const Vf own = broadcast(row_dot(x.row(t, m), y.row(t), dim));
      for (int64_t i = 0; i < c.num_slots; i += kLanes) {
        const Vf s = load(in.s + t * in.ld_m + i);
        store(to.row(t, m) + i, fma(own, s, load(decayed.row(t, m) + i)));
      }
    }
  }
}

/// What each member reads of a state with rows of slots that gains s times value, with a row's own.
inline void slots_read_rows(const SlotsChunk& c, const SlotsInputs& in, int64_t dim,
                            const ChunkRows& value_rows, const SlotsOperand& value,
                            const SlotsOperand& query, float scale, const SlotsOperand& read,
                            const ChunkRows* out, float* state) {
  if (c.pairs != nullptr) {
    return read_values_by_pairs(c, in, dim, value_rows, query, scale, out, state);
  }
  const SlotsOperand key{in.s, in.ld_m, 0};
  SlotsPrefetch prefetch(c);
  prefetch.result(out, dim);
  slots_forward<false>(c, in, c.num_slots, dim, key, value, query, read, state, prefetch.rows);
  for (int64_t m = 0; m < c.num_members; ++m) {
    for (int64_t t = 0; t < c.rows && scale != 1; ++t) scale_row(read.row(t, m), dim, scale);
    store_chunk_rows(read.row(0, m), read.ld, c.rows, dim, out[m]);
  }
}

inline void slots_fwd_chunk(const SlotsChunk& c) {
  SlotsInputs in = pack_slots(c);
  if (c.pairs == nullptr) pack_slots_values(c, in);
  const SlotsOperands x(c, in);
  if (does(c, SlotsPart::kLogits)) {
    SlotsPrefetch prefetch(c);
    prefetch.next(c.k, c.head_dim).next(c.q, c.head_dim);
    prefetch.next(c.s, c.num_slots).next(c.g, c.num_slots);
    if (c.part == SlotsPart::kAll) prefetch.next(c.v, c.head_dim_v);
    if (c.pairs == nullptr) {
      slots_forward<true>(c, in, c.head_dim, c.num_slots, x.k, x.s, x.q, x.logits, c.keys_by_slot,
                          prefetch.rows);
    } else {
      slots_read_decayed(c, in, c.head_dim, x.k, x.q, x.logits, c.keys_by_slot, nullptr,
                         prefetch.rows);
      slots_add_own(c, in, x.q, x.k, c.head_dim, x.logits, x.logits);
    }
    slots_softmax(c, x.logits, x.weights);
  }
  if (!does(c, SlotsPart::kValues)) return;
  slots_read_rows(c, in, c.head_dim_v, c.v, x.v, x.weights, 1.0f, x.wide, c.out, c.values_by_value);
}

/// dl of each member, and what reading adds to decays' gradients.
inline void slots_softmax_gradient(const SlotsChunk& c, const SlotsInputs& in,
                                   const SlotsOperands& x) {
  for (int64_t t = 0; t < c.rows; ++t) {
    float* sums = c.read_sums + t * in.ld_m;
    fill_row(sums, c.num_slots, 0);
    for (int64_t m = 0; m < c.num_members; ++m) {
      const float* p = x.weights.row(t, m);
      const float* dp = x.dp.row(t, m);
      const float* decayed_l = x.decayed_logits.row(t, m);
      const float* decayed_dp = x.decayed_dp.row(t, m);
      float* dl = x.dlogits.row(t, m);
      const Vf mean = broadcast(row_dot(p, dp, c.num_slots));
      for (int64_t i = 0; i < c.num_slots; i += kLanes) {
        const Vf gradient = load(p + i) * (load(dp + i) - mean);
        store(dl + i, gradient);
        const Vf read = fma(load(p + i), load(decayed_dp + i), load(decayed_l + i) * gradient);
        store(sums + i, load(sums + i) + read);
      }
      fill_row(dl + padded(c.num_slots), x.dlogits.ld - padded(c.num_slots), 0);
    }
  }
}

inline void slots_bwd_queries(const SlotsChunk& c) {
  SlotsInputs in = pack_slots(c);
  pack_slots_values(c, in);
  pack_slots_dout(c, in);
  const SlotsOperands x(c, in);
  if (does(c, SlotsPart::kLogits)) {
    SlotsPrefetch prefetch(c);
    prefetch.next(c.k, c.head_dim).next(c.q, c.head_dim);
    prefetch.next(c.s, c.num_slots).next(c.g, c.num_slots);
    slots_read_decayed(c, in, c.head_dim, x.k, x.q, x.decayed_logits, c.keys_by_slot,
                       c.kept_before.keys, prefetch.rows);
    slots_add_own(c, in, x.q, x.k, c.head_dim, x.decayed_logits, x.logits);
    slots_softmax(c, x.logits, x.weights);
  }
  if (does(c, SlotsPart::kDp)) {
    SlotsPrefetch prefetch(c);
    prefetch.next(c.v, c.head_dim_v).next(c.dout, c.head_dim_v);
    slots_read_decayed(c, in, c.head_dim_v, x.v, x.wide, x.decayed_dp, c.values_by_slot,
                       c.kept_before.values, prefetch.rows);
  }
  if (!does(c, SlotsPart::kQueries)) return;
  slots_add_own(c, in, x.wide, x.v, c.head_dim_v, x.decayed_dp, x.dp);
  slots_softmax_gradient(c, in, x);
  slots_read_rows(c, in, c.head_dim, c.k, x.k, x.dlogits, c.scale, x.keys, c.dq, c.keys_by_key);
}

inline void slots_state_dots(const SlotsChunk& c, const SlotsChunk& d) {
  const auto dot = [](const float* x, const float* dx, int64_t depth, int64_t i) {
    const int64_t first = i / kStripWidth * kStripWidth * depth + i % kStripWidth;
    double sum = 0;
    for (int64_t n = 0; n < depth; ++n) {
      const int64_t at = first + n * kStripWidth;
      if (dx[at] != 0) sum += static_cast<double>(x[at]) * static_cast<double>(dx[at]);
    }
    return sum;
  };
  for (int64_t i = 0; i < c.num_slots; ++i) {
    c.passing[i] = dot(c.keys_by_slot, d.keys_by_slot, c.head_dim, i) +
                   dot(c.values_by_slot, d.values_by_slot, c.head_dim_v, i);
  }
}

/// dg of the rows of a chunk, from ds.
inline void slots_gate_gradients(const SlotsChunk& c, const SlotsInputs& in, const float* ds,
                                 float* dg) {
  for (int64_t i = 0; i < c.num_slots && c.kept_behind.keys != nullptr; ++i) {
    const double sum = c.begun[i] + c.begun[c.num_slots + i];
    if (sum == sum) c.passing[i] = sum;
  }
  for (int64_t t = c.rows - 1; t >= 0; --t) {
    // The states that sums begin with are without the last row.
    const bool is_written = !c.ends_sequence || t + 1 < c.rows;
    for (int64_t i = 0; i < c.num_slots; ++i) {
      const int64_t at = t * in.ld_m + i;
      double sum = c.passing[i] + static_cast<double>(c.read_sums[at]);
      if (is_written) sum -= static_cast<double>(in.s[at] * ds[at]);
      c.passing[i] = in.decay[at] == 0 ? 0 : sum;
      dg[at] = static_cast<float>(c.passing[i]);
    }
  }
}

/// ds and dg of a chunk from what both states give.
inline void slots_finish_gates(const SlotsChunk& c, const SlotsInputs& in, const SlotsOperands& x) {
  for (int64_t t = 0; t < c.rows; ++t) {
    float* ds = x.slots.row(t);
    const float* more = x.more_slots.row(t);
    for (int64_t i = 0; i < c.num_slots; i += kLanes) store(ds + i, load(ds + i) + load(more + i));
  }
  slots_gate_gradients(c, in, x.slots.rows, x.more_slots.rows);
  for (int64_t m = 0; m < c.num_members; ++m) {
    for (int64_t t = 0; t < c.rows; ++t) {
      const Vf keys = broadcast(row_dot(x.q.row(t, m), x.k.row(t), c.head_dim));
      const Vf values = broadcast(row_dot(x.wide.row(t, m), x.v.row(t), c.head_dim_v));
      float* ds = x.slots.row(t);
      for (int64_t i = 0; i < c.num_slots; i += kLanes) {
        const Vf sum = fma(keys, load(x.dlogits.row(t, m) + i), load(ds + i));
        store(ds + i, fma(values, load(x.weights.row(t, m) + i), sum));
      }
    }
  }
  store_chunk_rows(x.slots.rows, in.ld_m, c.rows, c.num_slots, c.ds);
  store_chunk_rows(x.more_slots.rows, in.ld_m, c.rows, c.num_slots, c.dg);
}

/// ds by one of the states: what `query` reads of its gradient, without a row's own key and value.
inline void slots_gradients(const SlotsChunk& c, const SlotsInputs& in, int64_t depth,
                            const SlotsOperand& key, const SlotsOperand& value,
                            const SlotsOperand& query, const SlotsOperand& out, float* state,
                            uint16_t* kept, double* begun, RowPrefetch& prefetch) {
  for (int64_t i = 0; i < c.num_slots && kept != nullptr; ++i) begun[i] = __builtin_nan("");
  const uint64_t done =
      slot_gradients_by_pairs(c, in, depth, key, value, query, out, state, kept, begun, &prefetch);
  slots_backward<StripOrder::kReadAddDecay, true>(c, in, depth, c.num_slots, key, value, query, out,
                                                  state, done, prefetch);
}

/// dk or dv: what s reads of the gradient of a state with rows of slots.
inline void slots_value_gradients(const SlotsChunk& c, const SlotsInputs& in, int64_t dim,
                                  const SlotsOperand& key, const SlotsOperand& value,
                                  const SlotsOperand& out, float* state, RowPrefetch& prefetch) {
  const uint64_t done = value_gradients_by_pairs(c, in, dim, key, value, out, state, &prefetch);
  slots_backward<StripOrder::kAddReadDecay, false>(c, in, c.num_slots, dim, key, value,
                                                   {in.s, in.ld_m, 0}, out, state, done, prefetch);
}

inline void slots_bwd_keys(const SlotsChunk& c) {
  SlotsInputs in = pack_slots(c);
  pack_slots_values(c, in);
  pack_slots_dout(c, in);
  const SlotsOperands x(c, in);
  if (does(c, SlotsPart::kKeySlots)) {
    SlotsPrefetch prefetch(c);
    prefetch.next(c.k, c.head_dim).next(c.q, c.head_dim).result(c.dk, c.head_dim);
    slots_gradients(c, in, c.head_dim, x.q, x.dlogits, x.k, x.slots, c.keys_by_slot,
                    c.kept_behind.keys, c.begun, prefetch.rows);
  }
  if (does(c, SlotsPart::kValueSlots)) {
    SlotsPrefetch prefetch(c);
    prefetch.next(c.v, c.head_dim_v).next(c.dout, c.head_dim_v).result(c.dv, c.head_dim_v);
    slots_gradients(c, in, c.head_dim_v, x.wide, x.weights, x.v, x.more_slots, c.values_by_slot,
                    c.kept_behind.values, c.begun + c.num_slots, prefetch.rows);
  }
  if (does(c, SlotsPart::kKeys)) {
    SlotsPrefetch prefetch(c);
    prefetch.next(c.s, c.num_slots).next(c.g, c.num_slots);
    slots_value_gradients(c, in, c.head_dim, x.dlogits, x.q, x.keys, c.keys_by_key, prefetch.rows);
    store_chunk_rows(in.keys, in.ld_k, c.rows, c.head_dim, c.dk);
  }
  if (does(c, SlotsPart::kValues)) {
    SlotsPrefetch prefetch(c);
    prefetch.result(c.ds, c.num_slots).result(c.dg, c.num_slots);
    slots_value_gradients(c, in, c.head_dim_v, x.weights, x.wide, x.values, c.values_by_value,
                          prefetch.rows);
    store_chunk_rows(in.values, in.ld_v, c.rows, c.head_dim_v, c.dv);
  }
  if (does(c, SlotsPart::kGates)) slots_finish_gates(c, in, x);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
