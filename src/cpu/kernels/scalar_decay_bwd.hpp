// SPDX-License-Identifier: Apache-2.0
#pragma once

// The backward of a chunk with scalar decay. In the terms of scalar_decay_chunk.hpp, with dS' the
// gradient of the state behind the chunk, and of one output head:
//
//   dA = scale (dO V') D              P = scale (Q K') D
//   dQ = dA K + scale exp(G) dO S'    dK = dA'Q + w exp(G_last - G) V dS''
//   dV = P'dO + w exp(G_last - G) K dS'
//   dS = exp(G_last) dS' + scale (exp(G) Q)'dO
//
// S is kept transposed, which is how dO S' reads it. With a divisor dO is divided by it first and
// has one more column, the gradient of d: both follow from sums of P dO V' and q.(S dO).
//
// The gradient of a decay is the sum over what passes through it: pairs (i, j) with j < t <= i,
// what rows i >= t read of S, what rows j < t leave in S', and S itself on its way to S'. Sums over
// rows i and columns j of pairs off the diagonal give the first.

#include "cpu/kernels/scalar_decay_bwd_scratch.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// S' behind the chunk from S' before it. False: row by row.
template <class F, class Operands>
bool scalar_decay_bwd_state(const ScalarDecayBwdChunk& c) {
  const ScalarDecayShape& shape = *c.shape;
  ScalarDecayBwdScratch<Operands> scratch(c.scratch, shape);
  if (!pack_bwd_state_inputs(c, scratch)) return false;
  scratch.prefetch = bwd_prefetch(c);
  set_chunk_factors<F>(c.gates, shape.scale, c.rows, &scratch.factors);
  multiply_by_weights(c.gates.weight, c.rows, scratch.factors.to_state);
  const int64_t columns = state_columns(shape);
  right_from_floats(scratch.v.floats, scratch.ld_v, c.rows, columns, scratch.factors.to_state,
                    scratch.v_decayed, scratch.ld_v);
  update_state<Operands>(c.part.count, shape.head_dim, c.rows, scratch.factors.state, c.has_state,
                         Operands::from_column(scratch.v_decayed, c.part.first), scratch.ld_v,
                         scratch.k.right, scratch.ld_k, c.state + c.part.first * scratch.ld_k,
                         c.state_behind + c.part.first * scratch.ld_k, &scratch.prefetch);
  return true;
}

/// D scale of row i, 0 where it does not see a row, for j < padded(n).
template <class F>
void decay_factors_row(const ChunkGates& gates, float scale, int64_t i, int64_t n, float* factor) {
  const int64_t first = gates.first[i];
  const Vf high = broadcast(gates.high[i]);
  const Vf low = broadcast(gates.low[i]);
  for (int64_t j = 0; j < n; j += kLanes) {
    const Mf is_seen = first_lanes(i + 1 - j) & ~first_lanes(first - j);
    Vf x = select(is_seen, broadcast(scale), zero());
    if (gates.has_decay && any(is_seen)) {
      const Vf sum = (high - load(gates.high + j)) + (low - load(gates.low + j));
      x = x * F::of(select(is_seen, sum, broadcast(-__builtin_inff())));
    }
    store(factor + j, x);
  }
}

/// What goes through the state behind the chunk: dK without weight, dV, the ends of decays.
template <class Operands>
void gradients_behind(const ScalarDecayBwdChunk& c, ScalarDecayBwdScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const int64_t columns = state_columns(shape);
  const int32_t last_reset = c.gates.first[c.rows - 1];
  const int64_t begin = !c.has_dstate ? c.rows : last_reset < 0 ? 0 : last_reset;
  for (int64_t i = 0; i < begin; ++i) {
    fill_row(scratch.dk + i * scratch.ld_k, shape.head_dim, 0);
    fill_row(scratch.dv + i * scratch.ld_v, shape.head_dim_v, 0);
    scratch.ends[i] = 0;
  }
  if (begin == c.rows) return;
  const RowList dstate_rows(reinterpret_cast<char*>(c.dstate), scratch.ld_v * 4, shape.head_dim);
  pack_rows_transposed({dstate_rows.rows, DType::kF32, 1}, shape.head_dim, columns,
                       scratch.dstate_transposed, scratch.ld_k);
  const typename Operands::Element* dstate = nullptr;
  if constexpr (kHasFloatElements<Operands>) {
    dstate = c.dstate;
  } else {
    dstate = scratch.dstate_right;
    right_from_floats(c.dstate, scratch.ld_v, shape.head_dim, columns, nullptr,
                      scratch.dstate_right, scratch.ld_v);
    right_from_floats(scratch.dstate_transposed, scratch.ld_k, columns, shape.head_dim, nullptr,
                      scratch.dstate_transposed_right, scratch.ld_k);
  }
  GemmC dk{scratch.dk + begin * scratch.ld_k, scratch.ld_k};
  GemmC dv{scratch.dv + begin * scratch.ld_v, scratch.ld_v};
  dk.prefetch = dv.prefetch = &scratch.prefetch;
  Operands::multiply(c.rows - begin, shape.head_dim, columns, scratch.v.left + begin * scratch.ld_v,
                     scratch.ld_v, scratch.dstate_transposed_right, scratch.ld_k, dk);
  Operands::multiply(c.rows - begin, shape.head_dim_v, shape.head_dim,
                     scratch.k.left + begin * scratch.ld_k, scratch.ld_k, dstate, scratch.ld_v, dv);
  for (int64_t i = begin; i < c.rows; ++i) {
    const float dot =
        row_dot(scratch.k.floats + i * scratch.ld_k, scratch.dk + i * scratch.ld_k, shape.head_dim);
    scratch.ends[i] = static_cast<double>(dot * scratch.weighted_to_state[i]);
  }
}

/// <S, dS'> exp(G_last): what all decays of the chunk pass on.
template <class Operands>
double passed_on(const ScalarDecayBwdChunk& c, const ScalarDecayBwdScratch<Operands>& scratch) {
  if (!c.has_state || !c.has_dstate || scratch.factors.state == 0) return 0;
  double sum = 0;
  for (int64_t j = 0; j < state_columns(*c.shape); ++j) {
    sum += static_cast<double>(row_dot(c.state + j * scratch.ld_k,
                                       scratch.dstate_transposed + j * scratch.ld_k,
                                       c.shape->head_dim));
  }
  return sum * static_cast<double>(scratch.factors.state);
}

/// Q K' -> P and dO V' of all rows, each block as far as its last row sees.
template <class F, class Operands>
void pair_products(const ScalarDecayBwdChunk& c, ScalarDecayBwdScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const int64_t ld = scratch.ld_rows;
  for (int64_t begin = 0; begin < c.rows; begin += kChunkBlock) {
    const int64_t end = begin + kChunkBlock < c.rows ? begin + kChunkBlock : c.rows;
    Operands::multiply(end - begin, end, shape.head_dim, scratch.q.left + begin * scratch.ld_k,
                       scratch.ld_k, scratch.k_transposed, ld, {scratch.s + begin * ld, ld});
    Operands::multiply(end - begin, end, shape.head_dim_v, scratch.dout.left + begin * scratch.ld_v,
                       scratch.ld_v, scratch.v_transposed, ld, {scratch.e.floats + begin * ld, ld});
    for (int64_t i = begin; i < end; ++i) {
      float* s = scratch.s + i * ld;
      float* factor = scratch.factor + i * ld;
      decay_factors_row<F>(c.gates, shape.scale, i, end, factor);
      for (int64_t j = 0; j < end; j += kLanes) store(s + j, load(s + j) * load(factor + j));
      multiply_by_weights(c.gates.weight, end, s);
    }
  }
}

/// S dO of the rows that see S.
template <class Operands>
void state_products(const ScalarDecayBwdChunk& c, int64_t seeing,
                    ScalarDecayBwdScratch<Operands>& scratch) {
  if (seeing == 0) return;
  const typename Operands::Element* state = nullptr;
  if constexpr (kHasFloatElements<Operands>) {
    state = c.state;
  } else {
    state = scratch.state;
  }
  GemmC out{scratch.dq_state, scratch.ld_k};
  out.prefetch = &scratch.prefetch;
  Operands::multiply(seeing, c.shape->head_dim, c.shape->head_dim_v, scratch.dout.left,
                     scratch.ld_v, state, scratch.ld_k, out);
}

/// Of row i, from P, dO V' and S dO.
template <class Operands>
RowDivisor row_divisor(const ScalarDecayBwdChunk& c, int64_t i, int64_t seeing,
                       const ScalarDecayBwdScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const float* p = scratch.s + i * scratch.ld_rows;
  float d = 0;
  for (int64_t j = 0; j <= i; ++j) d += p[j];
  // Of the undivided output and its gradient.
  float dot = row_dot(p, scratch.e.floats + i * scratch.ld_rows, i + 1);
  if (i < seeing) {
    const float* q = scratch.q.floats + i * scratch.ld_k;
    const float factor = scratch.factors.from_state[i];
    d += factor * row_dot(q, c.state + shape.head_dim_v * scratch.ld_k, shape.head_dim);
    dot += factor * row_dot(q, scratch.dq_state + i * scratch.ld_k, shape.head_dim);
  }
  const float floor = shape.divisor == ChunkDivisor::kAtLeastFloor ? c.gates.floor[i] : 1.0f;
  const float inverse = inverse_divisor(shape.divisor, d, floor);
  float slope = 1;
  if (shape.divisor != ChunkDivisor::kSum) {
    slope = __builtin_fabsf(d) > floor ? __builtin_copysignf(1.0f, d) : 0.0f;
  }
  return {inverse, -dot * inverse * inverse * slope};
}

/// A row of dO -> its quotient by the divisor with the gradient of d behind it.
inline void divide_row(const RowDivisor& divisor, int64_t head_dim_v, float* dout) {
  scale_row(dout, head_dim_v, divisor.inverse);
  dout[head_dim_v] = divisor.dd;
}

/// dO -> its quotients, and dO V', S dO likewise.
template <class Operands>
void divide_gradients(const ScalarDecayBwdChunk& c, int64_t seeing,
                      ScalarDecayBwdScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const float* norm = c.state + shape.head_dim_v * scratch.ld_k;
  for (int64_t i = 0; i < c.rows; ++i) {
    float* e = scratch.e.floats + i * scratch.ld_rows;
    float* from_state = scratch.dq_state + i * scratch.ld_k;
    const RowDivisor divisor = row_divisor(c, i, seeing, scratch);
    const Vf factor = broadcast(divisor.inverse);
    const Vf added = broadcast(divisor.dd);
    for (int64_t j = 0; j <= i; j += kLanes) store(e + j, fma(load(e + j), factor, added));
    for (int64_t j = 0; j < shape.head_dim && i < seeing; j += kLanes) {
      store(from_state + j, fma(load(from_state + j), factor, load(norm + j) * added));
    }
    divide_row(divisor, shape.head_dim_v, scratch.dout.floats + i * scratch.ld_v);
  }
}

/// dO V' -> dA, and the sums of P dO V' over rows and columns.
template <class Operands>
void pair_gradients(const ScalarDecayBwdChunk& c, ScalarDecayBwdScratch<Operands>& scratch) {
  const int64_t ld = scratch.ld_rows;
  const bool has_weight = c.gates.weight != nullptr;
  fill_row(scratch.column_sums, c.rows, 0);
  for (int64_t begin = 0; begin < c.rows; begin += kChunkBlock) {
    const int64_t end = begin + kChunkBlock < c.rows ? begin + kChunkBlock : c.rows;
    for (int64_t i = begin; i < end; ++i) {
      const float* p = scratch.s + i * ld;
      const float* factor = scratch.factor + i * ld;
      float* e = scratch.e.floats + i * ld;
      Vf sum = zero();
      for (int64_t j = 0; j < end; j += kLanes) {
        const Mf is_seen = first_lanes(i + 1 - j);
        const Vf x = select(is_seen, load(e + j), zero());
        const Vf passing = select(first_lanes(i - j), load(p + j) * x, zero());
        sum = sum + passing;
        store(scratch.column_sums + j, load(scratch.column_sums + j) + passing);
        store(e + j, x * load(factor + j));
      }
      scratch.row_terms[i] += static_cast<double>(reduce_add(sum));
      if (!has_weight) continue;
      for (int64_t j = 0; j < end; j += kLanes) {
        store(scratch.da.floats + i * ld + j, load(e + j) * load(c.gates.weight + j));
      }
    }
    scratch.p.set_right(begin, end - begin, end);
    scratch.e.set_right(begin, end - begin, end);
    if (has_weight) {
      scratch.da.set_left(begin, end - begin, end);
    } else {
      scratch.e.set_left(begin, end - begin, end);
    }
  }
  for (int64_t j = 0; j < c.rows; ++j) {
    scratch.row_terms[j] -= static_cast<double>(scratch.column_sums[j]);
  }
}

/// dQ of one output head.
template <class Operands>
void query_gradient(const ScalarDecayBwdChunk& c, int64_t seeing,
                    ScalarDecayBwdScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const auto& da = c.gates.weight != nullptr ? scratch.da : scratch.e;
  for (int64_t begin = 0; begin < c.rows; begin += kChunkBlock) {
    const int64_t end = begin + kChunkBlock < c.rows ? begin + kChunkBlock : c.rows;
    GemmC out{c.dq + begin * scratch.ld_k, scratch.ld_k};
    out.accumulate = c.is_added;
    out.prefetch = &scratch.prefetch;
    Operands::multiply(end - begin, shape.head_dim, end, da.left + begin * da.ld, da.ld,
                       scratch.k.right, scratch.ld_k, out);
  }
  for (int64_t i = 0; i < seeing; ++i) {
    const Vf factor = broadcast(scratch.factors.from_state[i]);
    const float* from_state = scratch.dq_state + i * scratch.ld_k;
    float* dq = c.dq + i * scratch.ld_k;
    for (int64_t d = 0; d < shape.head_dim; d += kLanes) {
      store(dq + d, fma(load(from_state + d), factor, load(dq + d)));
    }
    const float dot = row_dot(scratch.q.floats + i * scratch.ld_k, from_state, shape.head_dim);
    scratch.row_terms[i] += static_cast<double>(scratch.factors.from_state[i] * dot);
  }
}

/// What one output head adds to dK without weight and dV, within the chunk. The first one scales
/// what is there.
template <class Operands>
void key_gradients(const ScalarDecayBwdChunk& c, bool is_first,
                   ScalarDecayBwdScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const int64_t ld = scratch.ld_rows;
  for (int64_t begin = 0; begin < c.rows; begin += kChunkBlock) {
    const int64_t end = begin + kChunkBlock < c.rows ? begin + kChunkBlock : c.rows;
    GemmC dk{scratch.dk + begin * scratch.ld_k, scratch.ld_k};
    GemmC dv{scratch.dv + begin * scratch.ld_v, scratch.ld_v};
    dk.accumulate = dv.accumulate = true;
    dk.prefetch = dv.prefetch = &scratch.prefetch;
    if (is_first) {
      dk.row_scale = scratch.factors.to_state + begin;
      dv.row_scale = scratch.weighted_to_state + begin;
    }
    const auto* e = Operands::from_column(Operands::from_row(scratch.e.right, begin, ld), begin);
    const auto* p = Operands::from_column(Operands::from_row(scratch.p.right, begin, ld), begin);
    Operands::multiply_transposed(end - begin, shape.head_dim, c.rows - begin, e, ld,
                                  Operands::from_row(scratch.q.right, begin, scratch.ld_k),
                                  scratch.ld_k, dk);
    Operands::multiply_transposed(end - begin, shape.head_dim_v, c.rows - begin, p, ld,
                                  Operands::from_row(scratch.dout.right, begin, scratch.ld_v),
                                  scratch.ld_v, dv);
  }
}

/// The gradient of the skip's factors, and dO times them, which is a part of dV.
template <class Operands>
void skip_gradients(const ScalarDecayBwdChunk& c, ScalarDecayBwdScratch<Operands>& scratch) {
  if (c.skip == nullptr) return;
  for (int64_t i = 0; i < c.rows; ++i) {
    const float* dout = scratch.dout.floats + i * scratch.ld_v;
    const float* v = scratch.v.floats + i * scratch.ld_v;
    float* dv = scratch.dv + i * scratch.ld_v;
    for (int64_t j = 0; j < c.shape->head_dim_v; ++j) {
      dv[j] += c.skip[j] * dout[j];
      c.dskip[j] += static_cast<double>(dout[j] * v[j]);
    }
  }
}

/// What one output head adds to dS; the first one makes it that before the chunk.
template <class Operands>
void add_to_dstate(const ScalarDecayBwdChunk& c, int64_t member,
                   ScalarDecayBwdScratch<Operands>& scratch) {
  const int64_t columns = state_columns(*c.shape);
  right_from_floats(scratch.dout.floats, scratch.ld_v, c.rows, columns, scratch.factors.from_state,
                    scratch.dout_decayed, scratch.ld_v);
  const bool is_first = member == 0;
  float* const dstate = c.dstate + c.part.first * scratch.ld_v;
  update_state<Operands>(c.part.count, columns, c.rows, is_first ? scratch.factors.state : 1.0f,
                         !is_first || c.has_dstate,
                         Operands::from_column(scratch.q.right, c.part.first), scratch.ld_k,
                         scratch.dout_decayed, scratch.ld_v, dstate, dstate, &scratch.prefetch);
}

/// The first ones of the chunk.
inline int64_t rows_that_see_state(const ScalarDecayBwdChunk& c) {
  return c.has_state ? rows_before_reset(c.gates, c.rows) : 0;
}

/// One output head: dQ, its part of dK and dV, and what it adds to dS.
template <class F, class Operands>
void member_gradients(const ScalarDecayBwdChunk& c, int64_t member,
                      ScalarDecayBwdScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const int64_t columns = state_columns(shape);
  const int64_t seeing = rows_that_see_state(c);
  pair_products<F>(c, scratch);
  state_products(c, seeing, scratch);
  if (shape.divisor != ChunkDivisor::kNone) divide_gradients(c, seeing, scratch);
  scratch.dout.set_right(0, c.rows, columns);
  pair_gradients(c, scratch);
  query_gradient(c, seeing, scratch);
  key_gradients(c, member == 0, scratch);
  skip_gradients(c, scratch);
  if (!c.keeps_dstate) add_to_dstate(c, member, scratch);
}

/// Gradients of gates, dK and dV, once all output heads have added theirs.
template <class Operands>
void finish_bwd(const ScalarDecayBwdChunk& c, double passed,
                ScalarDecayBwdScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  for (int64_t i = 0; i < c.rows; ++i) passed += scratch.ends[i];
  double sum = passed;
  for (int64_t t = c.rows - 1; t >= 0; --t) {
    sum += scratch.row_terms[t] - scratch.ends[t];
    c.dlog_decay[t] = c.gates.first[t] == t ? 0 : sum;
  }
  for (int64_t i = 0; i < c.rows; ++i) {
    const float* dk = scratch.dk + i * scratch.ld_k;
    const float* k = scratch.k.floats + i * scratch.ld_k;
    const float weight = c.gates.weight == nullptr ? 1.0f : c.gates.weight[i];
    if (c.gates.weight != nullptr) {
      c.dweight[i] = static_cast<double>(row_dot(k, dk, shape.head_dim));
    }
    float* to = c.dk + i * scratch.ld_k;
    for (int64_t d = 0; d < shape.head_dim; d += kLanes) {
      const Vf x = load(dk + d) * broadcast(weight);
      store(to + d, c.is_added ? load(to + d) + x : x);
    }
  }
  store_chunk_rows(scratch.dv, scratch.ld_v, c.rows, shape.head_dim_v, c.dv);
}

/// Q, K, V and dO, of these two those of the first output head; not the other forms of K and V.
/// False: row by row.
template <class Operands>
bool pack_bwd_inputs(const ScalarDecayBwdChunk& c, ScalarDecayBwdScratch<Operands>& scratch) {
  if (!pack_bwd_state_inputs(c, scratch)) return false;
  for (int64_t member = c.num_members - 1; member >= 0; --member) {
    if (pack_bwd_queries(c, member, scratch) && c.rows > 1) return false;
  }
  return true;
}

/// S as the products take it.
template <class Operands>
void pack_bwd_state(const ScalarDecayBwdChunk& c, ScalarDecayBwdScratch<Operands>& scratch) {
  if constexpr (!kHasFloatElements<Operands>) {
    if (!c.has_state) return;
    right_from_floats(c.state, scratch.ld_k, c.shape->head_dim_v, c.shape->head_dim, nullptr,
                      scratch.state, scratch.ld_k);
  }
}

/// What outputs are divided by, and what comes back through that, before dS is known.
template <class F, class Operands>
bool scalar_decay_bwd_divisors(const ScalarDecayBwdChunk& c) {
  ScalarDecayBwdScratch<Operands> scratch(c.scratch, *c.shape);
  if (!pack_bwd_inputs(c, scratch)) return false;
  pack_bwd_keys(c, scratch);
  pack_bwd_state(c, scratch);
  set_chunk_factors<F>(c.gates, c.shape->scale, c.rows, &scratch.factors);
  const int64_t seeing = rows_that_see_state(c);
  for (int64_t member = 0; member < c.num_members; ++member) {
    if (member > 0) pack_bwd_queries(c, member, scratch);
    pair_products<F>(c, scratch);
    state_products(c, seeing, scratch);
    for (int64_t i = 0; i < c.rows; ++i) {
      c.divisors[i * c.num_members + member] = row_divisor(c, i, seeing, scratch);
    }
  }
  return true;
}

/// dS before the chunk from dS' behind it, in place. With a divisor the inputs have been looked at.
template <class F, class Operands>
bool scalar_decay_bwd_dstate(const ScalarDecayBwdChunk& c) {
  const ScalarDecayShape& shape = *c.shape;
  ScalarDecayBwdScratch<Operands> scratch(c.scratch, shape);
  const bool has_divisor = shape.divisor != ChunkDivisor::kNone;
  if (!has_divisor && !pack_bwd_inputs(c, scratch)) return false;
  set_chunk_factors<F>(c.gates, shape.scale, c.rows, &scratch.factors);
  const int64_t num_divided = has_divisor ? c.rows : 0;
  for (int64_t member = 0; member < c.num_members; ++member) {
    if (has_divisor || member > 0) pack_bwd_queries(c, member, scratch);
    for (int64_t i = 0; i < num_divided; ++i) {
      divide_row(c.divisors[i * c.num_members + member], shape.head_dim_v,
                 scratch.dout.floats + i * scratch.ld_v);
    }
    add_to_dstate(c, member, scratch);
  }
  return true;
}

template <class F, class Operands>
bool scalar_decay_bwd_chunk(const ScalarDecayBwdChunk& c) {
  const ScalarDecayShape& shape = *c.shape;
  ScalarDecayBwdScratch<Operands> scratch(c.scratch, shape);
  if (!pack_bwd_inputs(c, scratch)) return false;
  scratch.prefetch = bwd_prefetch(c);
  pack_bwd_keys(c, scratch);
  set_chunk_factors<F>(c.gates, shape.scale, c.rows, &scratch.factors);
  for (int64_t j = 0; j < c.rows; j += kLanes) {
    store(scratch.weighted_to_state + j, load(scratch.factors.to_state + j));
  }
  multiply_by_weights(c.gates.weight, c.rows, scratch.weighted_to_state);
  for (int64_t i = 0; i < c.rows; ++i) scratch.row_terms[i] = 0;
  pack_bwd_state(c, scratch);
  gradients_behind(c, scratch);
  const double passed = passed_on(c, scratch);
  for (int64_t member = 0; member < c.num_members; ++member) {
    if (member > 0) pack_bwd_queries(c, member, scratch);
    member_gradients<F>(c, member, scratch);
    if (c.is_last) store_chunk_rows(c.dq, scratch.ld_k, c.rows, shape.head_dim, c.dq_rows[member]);
  }
  finish_bwd(c, passed, scratch);
  if (c.is_last) store_chunk_rows(c.dk, scratch.ld_k, c.rows, shape.head_dim, c.dk_rows);
  return true;
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
