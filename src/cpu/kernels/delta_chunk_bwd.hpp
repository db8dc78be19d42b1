// SPDX-License-Identifier: Apache-2.0
#pragma once

// The backward of a chunk of the delta rule with scalar decay. In the terms of delta_chunk.hpp and
// scalar_decay_bwd.hpp, with beta R = V^ and N the pairs of keys without beta:
//
//   R = V - exp(G) K S - N V^          N_ij = D_ij k_i.k_j for j < i, else 0
//
// So R takes off what keys read as queries do, of the rows before their own. Scalar decay's
// backward with V^ for V gives dV^ of the rest, and what keys read gives
//
//   Z = dV^ - N'U                      U = beta Z = dV, dbeta = Z.R
//
// from the last block of rows to the first, and then, with -U for dO and K for Q, its own part of
// dK, of the decays' gradients and of dS.

#include "cpu/kernels/delta_chunk_bwd_values.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// S' behind the chunk from S' before it. False: row by row.
template <class F, class Operands>
bool delta_chunk_bwd_state(const ScalarDecayBwdChunk& c) {
  DeltaChunkScratch<Operands> scratch(c.scratch, *c.shape);
  scratch.prefetch = bwd_prefetch(c);
  if (!pack_delta_keys<F>(c, scratch) || !find_values(c, c.part, scratch)) return false;
  const int64_t first = c.part.first;
  right_from_floats(scratch.v.floats + first, scratch.ld_v, c.rows, c.part.count,
                    scratch.factors.to_state, at_column<Operands>(scratch.v_decayed, first),
                    scratch.ld_v);
  update_state<Operands>(c.part.count, c.shape->head_dim, c.rows, scratch.factors.state,
                         c.has_state, Operands::from_column(scratch.v_decayed, first), scratch.ld_v,
                         scratch.k.right, scratch.ld_k, c.state + first * scratch.ld_k,
                         c.state_behind + first * scratch.ld_k, &scratch.prefetch);
  return true;
}

/// The first row that the state behind the chunk knows of; all of them where dS' is 0.
inline int64_t first_row_behind(const ScalarDecayBwdChunk& c) {
  const int32_t last_reset = c.gates.first[c.rows - 1];
  return !c.has_dstate ? c.rows : last_reset < 0 ? 0 : last_reset;
}

/// P and, from that and dS', dV^.
template <class Operands>
void find_corrected_gradients(const ScalarDecayBwdChunk& c, DeltaChunkScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const int64_t ld = scratch.ld_v;
  const int64_t ld_rows = scratch.ld_rows;
  const int64_t columns = shape.head_dim_v;
  const int64_t behind = first_row_behind(c);
  for (int64_t i = 0; i < behind; ++i) fill_row(scratch.dv + i * ld, columns, 0);
  for (int64_t i = c.rows; i < whole_blocks(c.rows); ++i) fill_row(scratch.dv + i * ld, columns, 0);
  if (behind < c.rows) {
    const typename Operands::Element* dstate = nullptr;
    if constexpr (kHasFloatElements<Operands>) {
      dstate = c.dstate;
    } else {
      dstate = scratch.dstate_right;
      right_from_floats(c.dstate, ld, shape.head_dim, columns, nullptr, scratch.dstate_right, ld);
    }
    Operands::multiply(c.rows - behind, columns, shape.head_dim,
                       scratch.k.left + behind * scratch.ld_k, scratch.ld_k, dstate, ld,
                       {.c = scratch.dv + behind * ld, .ldc = ld, .prefetch = &scratch.prefetch});
  }
  for (int64_t begin = 0; begin < c.rows; begin += kChunkBlock) {
    const int64_t end = begin + kChunkBlock < c.rows ? begin + kChunkBlock : c.rows;
    Operands::multiply(end - begin, end, shape.head_dim, scratch.q.left + begin * scratch.ld_k,
                       scratch.ld_k, scratch.k_transposed, ld_rows,
                       {.c = scratch.s + begin * ld_rows, .ldc = ld_rows});
    for (int64_t i = begin; i < end; ++i) {
      float* s = scratch.s + i * ld_rows;
      float* factor = scratch.factor + i * ld_rows;
      const Vf scale = broadcast(shape.scale);
      for (int64_t j = 0; j < end; j += kLanes) {
        const Vf x = load(scratch.decay + i * ld_rows + j) * scale;
        store(factor + j, x);
        store(s + j, load(s + j) * x);
      }
    }
    scratch.p.set_right(begin, end - begin, end);
  }
  for (int64_t begin = 0; begin < c.rows; begin += kChunkBlock) {
    const int64_t end = begin + kChunkBlock < c.rows ? begin + kChunkBlock : c.rows;
    const auto* p =
        Operands::from_column(Operands::from_row(scratch.p.right, begin, ld_rows), begin);
    Operands::multiply_transposed(end - begin, columns, c.rows - begin, p, ld_rows,
                                  Operands::from_row(scratch.dout.right, begin, ld), ld,
                                  {.c = scratch.dv + begin * ld,
                                   .ldc = ld,
                                   .accumulate = true,
                                   .row_scale = scratch.factors.to_state + begin,
                                   .prefetch = &scratch.prefetch});
  }
}

/// dV^ -> Z and U, from the last block to the first. False: row by row.
template <class Operands>
bool solve_value_gradients(const ScalarDecayBwdChunk& c, DeltaChunkScratch<Operands>& scratch) {
  const int64_t ld = scratch.ld_v;
  const int64_t ld_rows = scratch.ld_rows;
  const int64_t columns = c.shape->head_dim_v;
  bool is_finite = true;
  for (int64_t first = whole_blocks(c.rows) - kSolvedRows; first >= 0; first -= kSolvedRows) {
    const int64_t next = first + kSolvedRows;
    float* z = scratch.dv + first * ld;
    if (next < c.rows) {
      const auto* n =
          Operands::from_column(Operands::from_row(scratch.n.right, next, ld_rows), first);
      Operands::multiply_transposed(kSolvedRows, columns, c.rows - next, n, ld_rows,
                                    Operands::from_row(scratch.u.right, next, ld), ld,
                                    {.c = z, .ldc = ld, .alpha = -1.0f, .accumulate = true});
    }
    float m[kSolvedRows * kSolvedRows];  // of rows and columns from the last one on
    const int64_t count = next < c.rows ? kSolvedRows : c.rows - first;
    for (int64_t j = 0; j < kSolvedRows; ++j) {
      const int64_t row = kSolvedRows - 1 - j;
      const float beta = scratch.beta[first + row];
      const float* n = scratch.n.floats + (first + row) * ld_rows + next - 1;
      for (int64_t i = 0; i < kSolvedRows; ++i) {
        m[i * kSolvedRows + j] = row < count ? n[-i] * beta : 0.0f;
      }
    }
    for (int64_t d = 0; d < columns; d += kLanes) {
      if (solve_rows(m, kSolvedRows, kSolvedRows, z + (kSolvedRows - 1) * ld + d, -ld)) {
        is_finite = false;
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      const Vf beta = broadcast(scratch.beta[first + i]);
      for (int64_t d = 0; d < columns; d += kLanes) {
        store(scratch.u.floats + (first + i) * ld + d, load(z + i * ld + d) * beta);
      }
    }
    scratch.u.set_right(first, count, columns);
  }
  return c.rows == 1 || is_finite;
}

/// Queries and dO of the output head. True where some value is not finite.
template <class Operands>
bool pack_delta_queries(const ScalarDecayBwdChunk& c, DeltaChunkScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const bool has_nonfinite_query =
      pack_delta_rows(c.q[0], c.rows, shape.head_dim, c.normalizes, scratch.q, scratch.query_norms);
  return pack_delta_rows(c.dout[0], c.rows, shape.head_dim_v, /*normalizes=*/false, scratch.dout,
                         nullptr) ||
         has_nonfinite_query;
}

/// Adds what K reads to dS, which has what Q reads.
template <class Operands>
void add_keys_to_dstate(const ScalarDecayBwdChunk& c, DeltaChunkScratch<Operands>& scratch) {
  float factors[kMaxListedRows];
  for (int64_t i = 0; i < c.rows; ++i) factors[i] = -scratch.from_state[i];
  right_from_floats(scratch.u.floats, scratch.ld_v, c.rows, c.shape->head_dim_v, factors,
                    scratch.dout_decayed, scratch.ld_v);
  update_state<Operands>(c.shape->head_dim, c.shape->head_dim_v, c.rows, 1.0f, /*has_state=*/true,
                         scratch.k.right, scratch.ld_k, scratch.dout_decayed, scratch.ld_v,
                         c.dstate, c.dstate, &scratch.prefetch);
}

/// The gradient of the state before the chunk from that behind it, in place. False: row by row.
template <class F, class Operands>
bool delta_chunk_bwd_dstate(const ScalarDecayBwdChunk& c) {
  DeltaChunkScratch<Operands> scratch(c.scratch, *c.shape);
  if (!pack_delta_keys<F>(c, scratch)) return false;
  if (pack_delta_queries(c, scratch) && c.rows > 1) return false;
  find_corrected_gradients(c, scratch);
  if (!solve_value_gradients(c, scratch)) return false;
  add_to_dstate(c, 0, scratch);
  add_keys_to_dstate(c, scratch);
  return true;
}

/// What V^ in the state behind the chunk gives dK, and the ends of decays.
template <class Operands>
void keys_behind(const ScalarDecayBwdChunk& c, DeltaChunkScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const int64_t ld = scratch.ld_k;
  const int64_t behind = first_row_behind(c);
  for (int64_t i = 0; i < behind; ++i) {
    fill_row(scratch.dk + i * ld, shape.head_dim, 0);
    scratch.ends[i] = 0;
  }
  if (behind == c.rows) return;
  const RowList rows(reinterpret_cast<char*>(c.dstate), scratch.ld_v * 4, shape.head_dim);
  pack_rows_transposed({rows.rows, DType::kF32, 1}, shape.head_dim, shape.head_dim_v,
                       scratch.dstate_transposed, ld);
  if constexpr (!kHasFloatElements<Operands>) {
    right_from_floats(scratch.dstate_transposed, ld, shape.head_dim_v, shape.head_dim, nullptr,
                      scratch.dstate_transposed_right, ld);
  }
  Operands::multiply(c.rows - behind, shape.head_dim, shape.head_dim_v,
                     scratch.v.left + behind * scratch.ld_v, scratch.ld_v,
                     scratch.dstate_transposed_right, ld,
                     {.c = scratch.dk + behind * ld, .ldc = ld, .prefetch = &scratch.prefetch});
  for (int64_t i = behind; i < c.rows; ++i) {
    const float dot = row_dot(scratch.k.floats + i * ld, scratch.dk + i * ld, shape.head_dim);
    scratch.ends[i] = static_cast<double>(dot * scratch.factors.to_state[i]);
  }
}

/// dO V^' and -U V^', of these the gradients of Q K' and K K', and what decays within pairs add.
template <class Operands>
void delta_pair_gradients(const ScalarDecayBwdChunk& c, DeltaChunkScratch<Operands>& scratch) {
  const int64_t ld = scratch.ld_rows;
  const int64_t columns = c.shape->head_dim_v;
  const auto multiply = [&](const BothSides<Operands>& rows, float alpha, float* to, int64_t begin,
                            int64_t end) {
    Operands::multiply(end - begin, end, columns, rows.left + begin * rows.ld, rows.ld,
                       scratch.v_transposed, ld, {.c = to + begin * ld, .ldc = ld, .alpha = alpha});
  };
  for (int64_t begin = 0; begin < c.rows; begin += kChunkBlock) {
    const int64_t end = begin + kChunkBlock < c.rows ? begin + kChunkBlock : c.rows;
    multiply(scratch.dout, 1.0f, scratch.e.floats, begin, end);
    multiply(scratch.u, -1.0f, scratch.dn.floats, begin, end);
  }
  pair_gradients(c, scratch);
  fill_row(scratch.column_sums, c.rows, 0);
  for (int64_t begin = 0; begin < c.rows; begin += kChunkBlock) {
    const int64_t end = begin + kChunkBlock < c.rows ? begin + kChunkBlock : c.rows;
    for (int64_t i = begin; i < end; ++i) {
      const float* n = scratch.n.floats + i * ld;
      const float* decay = scratch.decay + i * ld;
      float* dn = scratch.dn.floats + i * ld;
      Vf sum = zero();
      for (int64_t j = 0; j < end; j += kLanes) {
        const Vf x = select(first_lanes(i - j), load(dn + j), zero());
        const Vf passing = load(n + j) * x;
        sum = sum + passing;
        store(scratch.column_sums + j, load(scratch.column_sums + j) + passing);
        store(dn + j, x * load(decay + j));
      }
      scratch.row_terms[i] += static_cast<double>(reduce_add(sum));
    }
    scratch.dn.set_left(begin, end - begin, end);
    scratch.dn.set_right(begin, end - begin, end);
  }
  for (int64_t j = 0; j < c.rows; ++j) {
    scratch.row_terms[j] -= static_cast<double>(scratch.column_sums[j]);
  }
}

/// dK, which has what keys_behind left.
template <class Operands>
void delta_key_gradients(const ScalarDecayBwdChunk& c, int64_t seeing,
                         DeltaChunkScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const int64_t ld = scratch.ld_k;
  const int64_t ld_rows = scratch.ld_rows;
  for (int64_t begin = 0; begin < c.rows; begin += kChunkBlock) {
    const int64_t end = begin + kChunkBlock < c.rows ? begin + kChunkBlock : c.rows;
    GemmC dk{.c = scratch.dk + begin * ld, .ldc = ld, .accumulate = true};
    dk.prefetch = &scratch.prefetch;
    dk.row_scale = scratch.factors.to_state + begin;
    const auto add_readers = [&](const BothSides<Operands>& pairs, const auto& readers) {
      const auto* from = Operands::from_row(pairs.right, begin, ld_rows);
      Operands::multiply_transposed(end - begin, shape.head_dim, c.rows - begin,
                                    Operands::from_column(from, begin), ld_rows,
                                    Operands::from_row(readers.right, begin, ld), ld, dk);
      dk.row_scale = nullptr;
    };
    add_readers(scratch.e, scratch.q);
    add_readers(scratch.dn, scratch.k);
    Operands::multiply(end - begin, shape.head_dim, end, scratch.dn.left + begin * ld_rows, ld_rows,
                       scratch.k.right, ld, dk);
  }
  for (int64_t i = 0; i < seeing; ++i) {
    const float factor = scratch.from_state[i];
    const float* from_state = scratch.dk_state + i * ld;
    float* dk = scratch.dk + i * ld;
    for (int64_t d = 0; d < shape.head_dim; d += kLanes) {
      store(dk + d, fnma(load(from_state + d), broadcast(factor), load(dk + d)));
    }
    const float dot = row_dot(scratch.k.floats + i * ld, from_state, shape.head_dim);
    scratch.row_terms[i] -= static_cast<double>(factor * dot);
  }
}

/// The gradient of normalised rows -> that of the rows: norm (dx - x (x.dx)).
inline void denormalize_gradient(const float* x, const float* norms, int64_t rows, int64_t dim,
                                 int64_t ld, float* dx) {
  for (int64_t i = 0; i < rows; ++i) {
    const Vf dot = broadcast(row_dot(x + i * ld, dx + i * ld, dim));
    const Vf norm = broadcast(norms[i]);
    for (int64_t d = 0; d < dim; d += kLanes) {
      float* to = dx + i * ld + d;
      store(to, norm * fnma(load(x + i * ld + d), dot, load(to)));
    }
  }
}

/// All gradients of a chunk. False: row by row.
template <class F, class Operands>
bool delta_chunk_bwd_chunk(const ScalarDecayBwdChunk& c) {
  const ScalarDecayShape& shape = *c.shape;
  DeltaChunkScratch<Operands> scratch(c.scratch, shape);
  scratch.prefetch = bwd_prefetch(c);
  if (!pack_delta_keys<F>(c, scratch)) return false;
  if (pack_delta_queries(c, scratch) && c.rows > 1) return false;
  if (!find_values(c, {0, shape.head_dim_v}, scratch)) return false;
  find_corrected_gradients(c, scratch);
  if (!solve_value_gradients(c, scratch)) return false;
  scratch.v.set_left(0, c.rows, shape.head_dim_v);
  scratch.u.set_left(0, c.rows, shape.head_dim_v);
  pack_floats_transposed<Operands>(scratch.v.floats, scratch.ld_v, c.rows, shape.head_dim_v,
                                   scratch.v_transposed, scratch.ld_rows);
  keys_behind(c, scratch);
  const double passed = passed_on(c, scratch);
  for (int64_t i = 0; i < c.rows; ++i) scratch.row_terms[i] = 0;
  const int64_t seeing = rows_that_see_state(c);
  pack_bwd_state(c, scratch);
  state_products(c, seeing, scratch);
  if (seeing > 0) {
    const typename Operands::Element* state = nullptr;
    if constexpr (kHasFloatElements<Operands>) {
      state = c.state;
    } else {
      state = scratch.state;
    }
    Operands::multiply(seeing, shape.head_dim, shape.head_dim_v, scratch.u.left, scratch.ld_v,
                       state, scratch.ld_k,
                       {.c = scratch.dk_state, .ldc = scratch.ld_k, .prefetch = &scratch.prefetch});
  }
  delta_pair_gradients(c, scratch);
  query_gradient(c, seeing, scratch);
  delta_key_gradients(c, seeing, scratch);
  if (!c.keeps_dstate) {
    add_to_dstate(c, 0, scratch);
    add_keys_to_dstate(c, scratch);
  }
  for (int64_t i = 0; i < c.rows; ++i) {
    scratch.dbeta[i] = row_dot(scratch.dv + i * scratch.ld_v, scratch.residual + i * scratch.ld_v,
                               shape.head_dim_v);
  }
  store_scalars(scratch.dbeta, c.rows, c.dbeta);
  scratch.dv = scratch.u.floats;
  finish_bwd(c, passed, scratch);
  if (!c.is_last) return true;
  if (c.normalizes) {
    denormalize_gradient(scratch.q.floats, scratch.query_norms, c.rows, shape.head_dim,
                         scratch.ld_k, c.dq);
    denormalize_gradient(scratch.k.floats, scratch.key_norms, c.rows, shape.head_dim, scratch.ld_k,
                         c.dk);
  }
  store_chunk_rows(c.dq, scratch.ld_k, c.rows, shape.head_dim, c.dq_rows[0]);
  store_chunk_rows(c.dk, scratch.ld_k, c.rows, shape.head_dim, c.dk_rows);
  return true;
}

template <class Operands>
int64_t delta_chunk_bwd_scratch_bytes(const ScalarDecayShape& shape) {
  return DeltaChunkScratch<Operands>(nullptr, shape).bytes;
}

template <class Operands, class F>
constexpr ScalarDecayOperandKernels delta_chunk_kernels() {
  return {.bwd_scratch_bytes = delta_chunk_bwd_scratch_bytes<Operands>,
          .bwd_state = with_products<Operands, delta_chunk_bwd_state<F, Operands>>,
          .bwd_dstate = with_products<Operands, delta_chunk_bwd_dstate<F, Operands>>,
          .bwd_chunk = with_products<Operands, delta_chunk_bwd_chunk<F, Operands>>};
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
