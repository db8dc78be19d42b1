// SPDX-License-Identifier: Apache-2.0
#pragma once

// The forward of a chunk with scalar decay; formulas are in scalar_decay_chunk.hpp, and those of
// the delta rule in delta_chunk.hpp.

#include "cpu/kernels/delta_chunk.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Operands and sums of a chunk. Floats serve on either side of a product, so of those that are
/// marked below there is only one.
template <class Operands>
struct ScalarDecayFwdScratch {
  using Element = typename Operands::Element;

  Element* q;
  Element* k_left;  ///< delta rule only, as `beta` and `norms`
  Element* k_transposed;
  Element* k;
  float* v_floats;
  Element* v;  ///< v_floats
  Element* v_decayed;
  Element* state;  ///< none: the state itself
  float* s;
  Element* p;  ///< s
  float* out;
  ChunkFactors factors;
  float* row_scale;
  float* beta;
  float* norms;  ///< 1 / |k|
  int64_t ld_k, ld_v, ld_rows;
  int64_t bytes;

  ScalarDecayFwdScratch(char* memory, const ScalarDecayShape& shape) {
    Scratch scratch{memory};
    // Blocks of the delta rule are solved whole.
    const int64_t rows = shape.is_delta ? whole_blocks(shape.max_rows) : shape.max_rows;
    ld_k = deep_tile_ld(shape.head_dim);
    ld_v = scalar_decay_state_ld(shape);
    ld_rows = tile_ld(rows);
    const auto operand = [&](int64_t count, int64_t ld) {
      return reinterpret_cast<Element*>(scratch.take_bytes(Operands::bytes(count, ld)));
    };
    q = operand(rows, ld_k);
    k_transposed = operand(shape.head_dim, ld_rows);
    k = operand(rows, ld_k);
    v_floats = scratch.take<float>(rows * ld_v);
    v_decayed = operand(rows, ld_v);
    s = scratch.take<float>(rows * ld_rows);
    out = scratch.take<float>(rows * ld_v);
    factors.from_state = scratch.take<float>(ld_rows);
    factors.to_state = scratch.take<float>(ld_rows);
    row_scale = scratch.take<float>(ld_rows);
    k_left = shape.is_delta ? operand(rows, ld_k) : nullptr;
    beta = shape.is_delta ? scratch.take<float>(ld_rows) : nullptr;
    norms = shape.is_delta ? scratch.take<float>(ld_rows) : nullptr;
    if constexpr (kHasFloatElements<Operands>) {
      v = v_floats;
      state = nullptr;
      p = s;
    } else {
      v = operand(rows, ld_v);
      state = operand(shape.head_dim, ld_v);
      p = operand(rows, ld_rows);
    }
    bytes = scratch.used;
  }
};

/// Packs what all members share. False: the chunk has to be taken row by row.
template <class Operands>
bool pack_fwd_inputs(const ScalarDecayFwdChunk& c, ScalarDecayFwdScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const RowList keys(c.k, c.rows);
  const RowSource k{keys.rows, c.k.dtype, c.k.stride};
  const bool has_nonfinite_key =
      Operands::pack_right(k, c.rows, shape.head_dim, scratch.k, scratch.ld_k);
  const bool has_nonfinite_value = pack_values(shape, c.v, c.rows, scratch.v_floats, scratch.ld_v);
  if (c.rows > 1 && (has_nonfinite_key || has_nonfinite_value)) return false;
  if (c.num_members > 0 || shape.is_delta) {
    Operands::pack_right_transposed(k, c.rows, shape.head_dim, scratch.k_transposed,
                                    scratch.ld_rows);
  }
  if constexpr (!kHasFloatElements<Operands>) {
    if (c.num_members > 0 && !shape.is_delta) {
      right_from_floats(scratch.v_floats, scratch.ld_v, c.rows, state_columns(shape), nullptr,
                        scratch.v, scratch.ld_v);
    }
  }
  return true;
}

/// What the delta rule takes besides.
template <class Operands>
void pack_delta_inputs(const ScalarDecayFwdChunk& c, ScalarDecayFwdScratch<Operands>& scratch) {
  const RowList keys(c.k, c.rows);
  Operands::pack_left({keys.rows, c.k.dtype, c.k.stride}, c.rows, c.shape->head_dim, scratch.k_left,
                      scratch.ld_k);
  if (c.normalizes) set_inverse_norms(scratch.k_left, scratch.ld_k, c.rows, scratch.norms);
  pack_scalars(c.beta, c.rows, scratch.beta, scratch.ld_rows);
}

/// V -> what the delta rule adds, as floats and as an operand. False: the chunk has to be taken row
/// by row, for a row may not see what others make of a state that is not finite.
template <class F, class Operands>
bool correct_values(const ScalarDecayFwdChunk& c, const typename Operands::Element* state,
                    RowPrefetch* prefetch, ScalarDecayFwdScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const int64_t columns = state_columns(shape);
  const int64_t ld = scratch.ld_v;
  const int64_t ld_rows = scratch.ld_rows;
  const int64_t seeing = c.has_state ? rows_before_reset(c.gates, c.rows) : 0;
  if (seeing > 0) {
    Operands::multiply(seeing, columns, shape.head_dim, scratch.k_left, scratch.ld_k, state, ld,
                       {.c = scratch.out, .ldc = ld, .prefetch = prefetch});
  }
  set_chunk_factors<F>(c.gates, 1.0f, c.rows, &scratch.factors);
  subtract_state(c.gates, scratch.factors, c.rows, seeing, columns, scratch.beta, scratch.out,
                 scratch.v_floats, ld);
  bool has_nonfinite = false;
  for (int64_t begin = 0; begin < c.rows; begin += kChunkBlock) {
    const int64_t end = begin + kChunkBlock < c.rows ? begin + kChunkBlock : c.rows;
    Operands::multiply(end - begin, end, shape.head_dim, scratch.k_left + begin * scratch.ld_k,
                       scratch.ld_k, scratch.k_transposed, ld_rows,
                       {.c = scratch.s + begin * ld_rows, .ldc = ld_rows, .prefetch = prefetch});
    for (int64_t i = begin; i < end; ++i) {
      const float norm = c.gates.weight == nullptr ? 1.0f : c.gates.weight[i];
      float* s = scratch.s + i * ld_rows;
      decay_row<F>(c.gates, c.gates.weight, scratch.beta[i] * norm, i, end, s, s);
    }
    for (int64_t first = begin; first < end; first += kSolvedRows) {
      const int64_t count = first + kSolvedRows < end ? kSolvedRows : end - first;
      float* values = scratch.v_floats + first * ld;
      const float* m = scratch.s + first * ld_rows;
      if (first > 0) {
        auto* p = scratch.p + first * ld_rows;
        for (int64_t i = 0; i < count; ++i) {
          for (int64_t j = 0; j < first; j += kLanes) {
            store_flush(p + i * ld_rows + j, load(m + i * ld_rows + j));
          }
        }
        Operands::multiply(count, columns, first, p, ld_rows, scratch.v, ld,
                           {.c = values, .ldc = ld, .alpha = -1.0f, .accumulate = true});
      }
      for (int64_t d = 0; d < columns; d += kLanes) {
        has_nonfinite |= solve_rows(m + first, ld_rows, count, values + d, ld);
      }
      right_from_floats(values, ld, count, columns, nullptr, scratch.v + first * ld, ld);
    }
  }
  return c.rows == 1 || !has_nonfinite;
}

/// The output rows of a member, and of the following chunk its queries and, with the last one, keys
/// and values.
inline RowPrefetch fwd_prefetch(const ScalarDecayFwdChunk& c, int64_t member) {
  const ScalarDecayShape& shape = *c.shape;
  RowPrefetch prefetch;
  prefetch_rows(c.out[member], 0, c.rows, shape.head_dim_v, &prefetch);
  if (const ScalarDecayFwdChunk* next = c.next; next != nullptr) {
    prefetch_rows(next->q[member], 0, next->rows, shape.head_dim, &prefetch);
    if (member + 1 == c.num_members) {
      prefetch_rows(next->k, 0, next->rows, shape.head_dim, &prefetch);
      prefetch_rows(next->v, 0, next->rows, shape.head_dim_v, &prefetch);
    }
  }
  // Tiles of Q S are about half of all, or, with the delta rule's, a quarter.
  constexpr int64_t kTileArea = kTileRows[kTileVecs - 1] * kTileVecs * kLanes;
  const int64_t num_tiles = 1 + c.rows * state_columns(shape) / kTileArea;
  prefetch.lines_a_tile = 1 + prefetch.num_lines() / ((shape.is_delta ? 4 : 2) * num_tiles);
  return prefetch;
}

/// O of one output head, before the divisor.
template <class F, class Operands>
void fwd_products(const ScalarDecayFwdChunk& c, int64_t member,
                  const typename Operands::Element* state, RowPrefetch* prefetch,
                  ScalarDecayFwdScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const int64_t columns = state_columns(shape);
  const ChunkRows& q = c.q[member];
  const RowList queries(q, c.rows);
  Operands::pack_left({queries.rows, q.dtype, q.stride}, c.rows, shape.head_dim, scratch.q,
                      scratch.ld_k);
  const int64_t seeing = c.has_state ? rows_before_reset(c.gates, c.rows) : 0;
  if (seeing > 0) {
    GemmC out{scratch.out, scratch.ld_v};
    out.prefetch = prefetch;
    Operands::multiply(seeing, columns, shape.head_dim, scratch.q, scratch.ld_k, state,
                       scratch.ld_v, out);
  }
  for (int64_t begin = 0; begin < c.rows; begin += kChunkBlock) {
    const int64_t end = begin + kChunkBlock < c.rows ? begin + kChunkBlock : c.rows;
    GemmC s{scratch.s + begin * scratch.ld_rows, scratch.ld_rows};
    s.prefetch = prefetch;
    Operands::multiply(end - begin, end, shape.head_dim, scratch.q + begin * scratch.ld_k,
                       scratch.ld_k, scratch.k_transposed, scratch.ld_rows, s);
    for (int64_t i = begin; i < end; ++i) {
      decay_row<F>(c.gates, c.gates.weight, shape.scale, i, end, scratch.s + i * scratch.ld_rows,
                   scratch.p + i * scratch.ld_rows);
    }
    const int64_t middle = seeing < begin ? begin : seeing < end ? seeing : end;
    const auto add_values = [&](int64_t from, int64_t to, bool accumulate) {
      if (from == to) return;
      GemmC out{scratch.out + from * scratch.ld_v, scratch.ld_v};
      out.accumulate = accumulate;
      if (accumulate) out.row_scale = scratch.factors.from_state + from;
      out.prefetch = prefetch;
      Operands::multiply(to - from, columns, end, scratch.p + from * scratch.ld_rows,
                         scratch.ld_rows, scratch.v, scratch.ld_v, out);
    };
    add_values(begin, middle, true);
    add_values(middle, end, false);
  }
}

/// Divides, adds the skip, and writes the output rows.
template <class Operands>
void finish_fwd(const ScalarDecayFwdChunk& c, const ChunkRows& target,
                ScalarDecayFwdScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const float* row_scale = nullptr;
  if (shape.divisor != ChunkDivisor::kNone) {
    for (int64_t i = 0; i < c.rows; ++i) {
      const float floor = shape.divisor == ChunkDivisor::kAtLeastFloor ? c.gates.floor[i] : 1.0f;
      scratch.row_scale[i] =
          inverse_divisor(shape.divisor, scratch.out[i * scratch.ld_v + shape.head_dim_v], floor);
    }
    row_scale = scratch.row_scale;
  }
  if (c.normalizes) {
    set_inverse_norms(scratch.q, scratch.ld_k, c.rows, scratch.row_scale);
    row_scale = scratch.row_scale;
  }
  if (c.skip != nullptr) {
    for (int64_t i = 0; i < c.rows; ++i) {
      float* out = scratch.out + i * scratch.ld_v;
      const float* v = scratch.v_floats + i * scratch.ld_v;
      for (int64_t j = 0; j < shape.head_dim_v; ++j) {
        out[j] += c.skip[j] * v[j];
      }
    }
  }
  const RowList rows(target, c.rows);
  unpack_rows(scratch.out, scratch.ld_v, c.rows, shape.head_dim_v,
              {rows.rows, target.dtype, target.stride}, 1.0f, row_scale);
}

template <class F, class Operands>
bool scalar_decay_fwd_chunk(const ScalarDecayFwdChunk& inputs) {
  using Element = typename Operands::Element;
  ScalarDecayFwdChunk c = inputs;
  const ScalarDecayShape& shape = *c.shape;
  ScalarDecayFwdScratch<Operands> scratch(c.scratch, shape);
  if (!pack_fwd_inputs(c, scratch)) return false;
  if (c.normalizes) c.gates.weight = scratch.norms;

  const Element* state = nullptr;
  if constexpr (kHasFloatElements<Operands>) {
    state = c.state;
  } else {
    state = scratch.state;
    if (c.has_state && (c.num_members > 0 || shape.is_delta)) {
      right_from_floats(c.state, scratch.ld_v, shape.head_dim, state_columns(shape), nullptr,
                        scratch.state, scratch.ld_v);
    }
  }
  RowPrefetch prefetch;
  if (c.num_members > 0) prefetch = fwd_prefetch(c, 0);
  if constexpr (!kHasFloatElements<Operands>) {
    if (shape.is_delta) {
      pack_delta_inputs(c, scratch);
      if (!correct_values<F>(c, state, &prefetch, scratch)) return false;
    }
  }
  set_chunk_factors<F>(c.gates, shape.scale, c.rows, &scratch.factors);
  for (int64_t member = 0; member < c.num_members; ++member) {
    if (member > 0) prefetch = fwd_prefetch(c, member);
    fwd_products<F, Operands>(c, member, state, &prefetch, scratch);
    finish_fwd(c, c.out[member], scratch);
  }

  multiply_by_weights(c.gates.weight, c.rows, scratch.factors.to_state);
  right_from_floats(scratch.v_floats, scratch.ld_v, c.rows, state_columns(shape),
                    scratch.factors.to_state, scratch.v_decayed, scratch.ld_v);
  update_state<Operands>(shape.head_dim, state_columns(shape), c.rows, scratch.factors.state,
                         c.has_state, scratch.k, scratch.ld_k, scratch.v_decayed, scratch.ld_v,
                         c.state, c.state, &prefetch);
  return true;
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
