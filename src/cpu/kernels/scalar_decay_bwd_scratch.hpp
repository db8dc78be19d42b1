// SPDX-License-Identifier: Apache-2.0
#pragma once

// Memory of a chunk's backward, and what its inputs are packed into.

#include "cpu/kernels/scalar_decay_chunk.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// A block of rows in float32, and as an operand on either side of a product. Floats serve as both.
template <class Operands>
struct BothSides {
  using Element = typename Operands::Element;

  float* floats;
  Element* left;
  Element* right;
  int64_t ld;

  void place(Scratch& scratch, int64_t rows, int64_t leading) {
    ld = leading;
    floats = scratch.take<float>(rows * ld);
    left = right = nullptr;
    if constexpr (kHasFloatElements<Operands>) {
      left = right = floats;
    } else {
      left = reinterpret_cast<Element*>(scratch.take_bytes(Operands::bytes(rows, ld)));
      right = reinterpret_cast<Element*>(scratch.take_bytes(Operands::bytes(rows, ld)));
    }
  }
  /// After the floats of `rows` rows from an even one on have been written, with zeros behind
  /// `dim`.
  void set_left(int64_t first, int64_t rows, int64_t dim) {
    if constexpr (!kHasFloatElements<Operands>) {
      for (int64_t i = first; i < first + rows; ++i) {
        for (int64_t j = 0; j < dim; j += kLanes) {
          store_flush(left + i * ld + j, load(floats + i * ld + j));
        }
      }
    }
  }
  void set_right(int64_t first, int64_t rows, int64_t dim) {
    if constexpr (!kHasFloatElements<Operands>) {
      right_from_floats(floats + first * ld, ld, rows, dim, nullptr, right + first * ld, ld);
    }
  }
};

template <class Operands>
struct ScalarDecayBwdScratch {
  using Element = typename Operands::Element;

  BothSides<Operands> q, k, v, dout;
  Element* k_transposed;
  Element* v_transposed;
  Element* v_decayed;     ///< for the recurrence of S'
  Element* dout_decayed;  ///< for that of dS
  Element* state;         ///< S' as a right operand; none: itself
  float* dstate_transposed;
  Element* dstate_right;             ///< none: dS itself
  Element* dstate_transposed_right;  ///< none: dstate_transposed
  float* dq_state;                   ///< S dO'
  float* dk;                         ///< without the weight
  float* dv;
  float* s;                ///< Q K', then P
  float* factor;           ///< scale D without the weight
  BothSides<Operands> p;   ///< its floats are s
  BothSides<Operands> e;   ///< dO V', then dA without the weight
  BothSides<Operands> da;  ///< with it; e where there is none
  RowPrefetch prefetch;
  ChunkFactors factors;
  float* weighted_to_state;
  float* column_sums;
  double* row_terms;  ///< what the decays of rows up to row i add
  double* ends;       ///< what row i adds to those behind it
  int64_t ld_k, ld_v, ld_rows;
  int64_t bytes;

  ScalarDecayBwdScratch(char* memory, const ScalarDecayShape& shape) {
    Scratch scratch{memory};
    const int64_t rows = shape.max_rows;
    ld_k = deep_tile_ld(shape.head_dim);
    ld_v = scalar_decay_state_ld(shape);
    ld_rows = tile_ld(rows);
    const auto operand = [&](int64_t count, int64_t ld) {
      return reinterpret_cast<Element*>(scratch.take_bytes(Operands::bytes(count, ld)));
    };
    q.place(scratch, rows, ld_k);
    k.place(scratch, rows, ld_k);
    v.place(scratch, rows, ld_v);
    dout.place(scratch, rows, ld_v);
    p.place(scratch, rows, ld_rows);
    e.place(scratch, rows, ld_rows);
    da.place(scratch, rows, ld_rows);
    s = p.floats;
    k_transposed = operand(shape.head_dim, ld_rows);
    v_transposed = operand(shape.head_dim_v, ld_rows);
    v_decayed = operand(rows, ld_v);
    dout_decayed = operand(rows, ld_v);
    const int64_t columns = state_columns(shape);
    dstate_transposed = scratch.take<float>(columns * ld_k);
    if constexpr (kHasFloatElements<Operands>) {
      state = dstate_right = nullptr;
      dstate_transposed_right = dstate_transposed;
    } else {
      state = operand(columns, ld_k);
      dstate_right = operand(shape.head_dim, ld_v);
      dstate_transposed_right = operand(columns, ld_k);
    }
    dq_state = scratch.take<float>(rows * ld_k);
    dk = scratch.take<float>(rows * ld_k);
    dv = scratch.take<float>(rows * ld_v);
    factor = scratch.take<float>(rows * ld_rows);
    factors.from_state = scratch.take<float>(ld_rows);
    factors.to_state = scratch.take<float>(ld_rows);
    weighted_to_state = scratch.take<float>(ld_rows);
    column_sums = scratch.take<float>(ld_rows);
    row_terms = scratch.take<double>(ld_rows);
    ends = scratch.take<double>(ld_rows);
    bytes = scratch.used;
  }
};

/// Floats of rows, and from these what the products take. True where some value is not finite.
template <class Operands>
bool pack_both_sides(const ChunkRows& source, int64_t rows, int64_t dim,
                     BothSides<Operands>& target) {
  const RowList list(source, rows);
  const RowSource from{list.rows, source.dtype, source.stride};
  const bool has_nonfinite = pack_rows(from, rows, dim, target.floats, target.ld);
  if constexpr (!kHasFloatElements<Operands>) {
    Operands::pack_left(from, rows, dim, target.left, target.ld);
  }
  return has_nonfinite;
}

/// What the recurrence of the state takes: K and V. False: the chunk has to be taken row by row.
template <class Operands>
bool pack_bwd_state_inputs(const ScalarDecayBwdChunk& c, ScalarDecayBwdScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const bool has_nonfinite_key = pack_both_sides(c.k, c.rows, shape.head_dim, scratch.k);
  const bool has_nonfinite_value = pack_values(shape, c.v, c.rows, scratch.v.floats, scratch.ld_v);
  if (c.rows > 1 && (has_nonfinite_key || has_nonfinite_value)) return false;
  scratch.k.set_right(0, c.rows, shape.head_dim);
  return true;
}

/// The inputs of the following chunk, and the rows that this one writes.
inline RowPrefetch bwd_prefetch(const ScalarDecayBwdChunk& c) {
  const ScalarDecayShape& shape = *c.shape;
  RowPrefetch prefetch;
  const ScalarDecayBwdChunk* next = c.next;
  if (next == nullptr) return prefetch;
  for (int64_t member = 0; member < c.num_members && c.is_last; ++member) {
    prefetch_rows(c.dq_rows[member], 0, c.rows, shape.head_dim, &prefetch);
  }
  prefetch_rows(c.dv, 0, c.rows, shape.head_dim_v, &prefetch);
  prefetch_rows(next->k, 0, next->rows, shape.head_dim, &prefetch);
  prefetch_rows(next->v, 0, next->rows, shape.head_dim_v, &prefetch);
  for (int64_t member = 0; member < next->num_members; ++member) {
    prefetch_rows(next->q[member], 0, next->rows, shape.head_dim, &prefetch);
    prefetch_rows(next->dout[member], 0, next->rows, shape.head_dim_v, &prefetch);
  }
  if (c.is_last) prefetch_rows(c.dk_rows, 0, c.rows, shape.head_dim, &prefetch);
  // Tiles of the products with dS and S, and of those within the chunk.
  constexpr int64_t kTileArea = kTileRows[kTileVecs - 1] * kTileVecs * kLanes;
  const int64_t products = c.num_members == 0 ? 1 : 3 + 4 * c.num_members;
  const int64_t num_tiles = 1 + products * c.rows * shape.head_dim / kTileArea;
  prefetch.lines_a_tile = 1 + prefetch.num_lines() / num_tiles;
  return prefetch;
}

/// The other forms of K and V.
template <class Operands>
void pack_bwd_keys(const ScalarDecayBwdChunk& c, ScalarDecayBwdScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const RowList keys(c.k, c.rows);
  const RowList values(c.v, c.rows);
  Operands::pack_right_transposed({keys.rows, c.k.dtype, c.k.stride}, c.rows, shape.head_dim,
                                  scratch.k_transposed, scratch.ld_rows);
  Operands::pack_right_transposed({values.rows, c.v.dtype, c.v.stride}, c.rows, shape.head_dim_v,
                                  scratch.v_transposed, scratch.ld_rows);
  scratch.v.set_left(0, c.rows, state_columns(shape));
}

/// Q and dO of one output head; true where some value is not finite.
template <class Operands>
bool pack_bwd_queries(const ScalarDecayBwdChunk& c, int64_t member,
                      ScalarDecayBwdScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const bool has_nonfinite_query = pack_both_sides(c.q[member], c.rows, shape.head_dim, scratch.q);
  const bool has_nonfinite_gradient =
      pack_both_sides(c.dout[member], c.rows, shape.head_dim_v, scratch.dout);
  scratch.q.set_right(0, c.rows, shape.head_dim);
  return has_nonfinite_query || has_nonfinite_gradient;
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
