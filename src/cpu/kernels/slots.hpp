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
  float* ones;  ///< a decay, a key and a value that change nothing
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
  if (c.part != P::kLogits && c.part != P::kKeySlots && c.part != P::kKeys) {
    pack_chunk_rows(c.v, c.rows, c.head_dim_v, 1.0f, in.v, in.ld_v);
  }
  if (c.part != P::kKeySlots && c.part != P::kValueSlots) {
    pack_chunk_rows(c.s, c.rows, c.num_slots, 1.0f, in.s, in.ld_m);
  }
  set_decays(c.g, /*is_vector_gate=*/true, c.rows, c.num_slots, in.decay, in.ld_m, in.resets);
  fill_row(in.ones, in.ld_m, 1);
  fill_row(in.zeros, in.longest(), 0);
  return in;
}

inline void pack_slots_dout(const SlotsChunk& c, SlotsInputs& in) {
  if (c.part == SlotsPart::kLogits || c.part == SlotsPart::kKeySlots ||
      c.part == SlotsPart::kKeys) {
    return;
  }
  for (int64_t m = 0; m < c.num_members; ++m) {
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

/// All rows of a chunk over a state: it decays, gains key times value, and each member reads it.
template <bool kDecaysColumns>
void slots_forward(const SlotsChunk& c, const SlotsInputs& in, int64_t depth, int64_t dim,
                   const SlotsOperand& key, const SlotsOperand& value, const SlotsOperand& query,
                   const SlotsOperand& out, float* state) {
  for (int64_t column = 0; column < dim; column += kStripWidth) {
    const int64_t num_vecs = padded(dim - column) / kLanes;
    float* strip = state + column * depth;
    for (int64_t t = 0; t < c.rows; ++t) {
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
                               const SlotsOperand& out, float* state) {
  for (int64_t column = 0; column < c.num_slots; column += kStripWidth) {
    const int64_t num_vecs = padded(c.num_slots - column) / kLanes;
    float* strip = state + column * depth;
    const float* added_key = in.zeros;
    const float* added_value = in.zeros;
    const auto step = [&](const float* decay, bool is_reset, const float* by, float* to) {
      strip_row_of<StripOrder::kAddDecayRead, true>(
          num_vecs, {depth, decay, is_reset, added_key, added_value, 1, 0, 0, by, to}, strip);
    };
    for (int64_t t = 0; t < c.rows; ++t) {
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
/// decays, in this or another order.
template <StripOrder kOrder, bool kDecaysColumns>
void slots_backward(const SlotsChunk& c, const SlotsInputs& in, int64_t depth, int64_t dim,
                    const SlotsOperand& key, const SlotsOperand& value, const SlotsOperand& query,
                    const SlotsOperand& out, float* state) {
  for (int64_t column = 0; column < dim; column += kStripWidth) {
    const int64_t num_vecs = padded(dim - column) / kLanes;
    for (int64_t t = c.rows - 1; t >= 0; --t) {
      const float* decay = in.decay + t * in.ld_m + (kDecaysColumns ? column : 0);
      strip_row_of<kOrder, kDecaysColumns>(
          num_vecs,
          {depth, decay, in.resets[t] != 0, key.row(t), value.row(t) + column, c.num_members,
           key.step, value.step, query.row(t), out.row(t) + column},
          state + column * depth);
    }
  }
}

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
    // What is kept of a sequence has the members of a row side by side.
    const auto kept = [&](float* data) {
      return SlotsOperand{data, c.num_members * in.ld_m, in.ld_m};
    };
    weights = c.weights == nullptr ? logits : kept(c.weights);
    dlogits = kept(c.dlogits);
    if (c.decayed_logits != nullptr) decayed_logits = kept(c.decayed_logits);
    if (c.decayed_dp != nullptr) decayed_dp = kept(c.decayed_dp);
    if (c.key_slots != nullptr) slots.rows = c.key_slots;
    if (c.value_slots != nullptr) more_slots.rows = c.value_slots;
  }
};

/// p of each member.
inline void slots_softmax(const SlotsChunk& c, const SlotsOperand& logits,
                          const SlotsOperand& weights) {
  for (int64_t m = 0; m < c.num_members; ++m) {
    for (int64_t t = 0; t < c.rows; ++t) {
      const float* l = logits.row(t, m);
      const float top = row_max_of(l, c.num_slots, -__builtin_inff());
      const float sum = exp_row<Exp>(l, c.num_slots, top, weights.row(t, m));
      scale_row(weights.row(t, m), c.num_slots, 1.0f / sum);
    }
  }
}

inline void slots_fwd_chunk(const SlotsChunk& c) {
  const SlotsInputs in = pack_slots(c);
  const SlotsOperands x(c, in);
  if (does(c, SlotsPart::kLogits)) {
    slots_forward<true>(c, in, c.head_dim, c.num_slots, x.k, x.s, x.q, x.logits, c.keys_by_slot);
    slots_softmax(c, x.logits, x.weights);
  }
  if (!does(c, SlotsPart::kValues)) return;
  slots_forward<false>(c, in, c.num_slots, c.head_dim_v, x.s, x.v, x.weights, x.wide,
                       c.values_by_value);
  for (int64_t m = 0; m < c.num_members; ++m) {
    store_chunk_rows(x.wide.row(0, m), in.ld_v, c.rows, c.head_dim_v, c.out[m]);
  }
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

inline void slots_bwd_queries(const SlotsChunk& c) {
  SlotsInputs in = pack_slots(c);
  pack_slots_dout(c, in);
  const SlotsOperands x(c, in);
  if (does(c, SlotsPart::kLogits)) {
    slots_read_decayed(c, in, c.head_dim, x.k, x.q, x.decayed_logits, c.keys_by_slot);
    slots_add_own(c, in, x.q, x.k, c.head_dim, x.decayed_logits, x.logits);
    slots_softmax(c, x.logits, x.weights);
  }
  if (does(c, SlotsPart::kDp)) {
    slots_read_decayed(c, in, c.head_dim_v, x.v, x.wide, x.decayed_dp, c.values_by_slot);
  }
  if (!does(c, SlotsPart::kQueries)) return;
  slots_add_own(c, in, x.wide, x.v, c.head_dim_v, x.decayed_dp, x.dp);
  slots_softmax_gradient(c, in, x);
  slots_forward<false>(c, in, c.num_slots, c.head_dim, x.s, x.k, x.dlogits, x.keys, c.keys_by_key);
  for (int64_t m = 0; m < c.num_members; ++m) {
    for (int64_t t = 0; t < c.rows; ++t) scale_row(x.keys.row(t, m), c.head_dim, c.scale);
    store_chunk_rows(x.keys.row(0, m), in.ld_k, c.rows, c.head_dim, c.dq[m]);
  }
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

inline void slots_bwd_keys(const SlotsChunk& c) {
  SlotsInputs in = pack_slots(c);
  pack_slots_dout(c, in);
  const SlotsOperands x(c, in);
  constexpr StripOrder kOwn = StripOrder::kAddReadDecay;
  constexpr StripOrder kOthers = StripOrder::kReadAddDecay;
  if (does(c, SlotsPart::kKeySlots)) {
    slots_backward<kOthers, true>(c, in, c.head_dim, c.num_slots, x.q, x.dlogits, x.k, x.slots,
                                  c.keys_by_slot);
  }
  if (does(c, SlotsPart::kValueSlots)) {
    slots_backward<kOthers, true>(c, in, c.head_dim_v, c.num_slots, x.wide, x.weights, x.v,
                                  x.more_slots, c.values_by_slot);
  }
  if (does(c, SlotsPart::kKeys)) {
    slots_backward<kOwn, false>(c, in, c.num_slots, c.head_dim, x.dlogits, x.q, x.s, x.keys,
                                c.keys_by_key);
    store_chunk_rows(in.keys, in.ld_k, c.rows, c.head_dim, c.dk);
  }
  if (does(c, SlotsPart::kValues)) {
    slots_backward<kOwn, false>(c, in, c.num_slots, c.head_dim_v, x.weights, x.wide, x.s, x.values,
                                c.values_by_value);
    store_chunk_rows(in.values, in.ld_v, c.rows, c.head_dim_v, c.dv);
  }
  if (does(c, SlotsPart::kGates)) slots_finish_gates(c, in, x);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
