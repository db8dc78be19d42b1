// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the backward of a chunk of the delta rule begins with: its memory, packed keys, and V^ and R
// worked out again. Formulas are in delta_chunk.hpp and delta_chunk_bwd.hpp.

#include "cpu/kernels/delta_chunk.hpp"
#include "cpu/kernels/scalar_decay_bwd.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Of scalar decay, where v is V^ and dv first dV^, then Z, at last U; and what comes to that.
template <class Operands>
struct DeltaChunkScratch : ScalarDecayBwdScratch<Operands> {
  using Element = typename Operands::Element;

  BothSides<Operands> u;
  BothSides<Operands> n;   ///< N
  BothSides<Operands> dn;  ///< -U V^', then its part of the gradient of K K'
  Element* state_left;     ///< S', a row for each value dimension; none: itself
  float* state_values;     ///< S'K'
  float* residual;         ///< K S, then R
  float* decay;            ///< D
  float* beta;
  float* from_state;  ///< exp(G_i), 0 behind a reset
  float* key_norms;
  float* query_norms;
  float* dk_state;  ///< S U
  float* dbeta;

  DeltaChunkScratch(char* memory, const ScalarDecayShape& shape)
      : ScalarDecayBwdScratch<Operands>(memory, with_whole_blocks(shape)) {
    Scratch scratch{memory, this->bytes};
    const int64_t rows = whole_blocks(shape.max_rows);
    u.place(scratch, rows, this->ld_v);
    n.place(scratch, rows, this->ld_rows);
    dn.place(scratch, rows, this->ld_rows);
    state_left = nullptr;
    if constexpr (!kHasFloatElements<Operands>) {
      state_left = reinterpret_cast<Element*>(
          scratch.take_bytes(Operands::bytes(shape.head_dim_v, this->ld_k)));
    }
    state_values = scratch.take<float>(shape.head_dim_v * this->ld_rows);
    residual = scratch.take<float>(rows * this->ld_v);
    decay = scratch.take<float>(rows * this->ld_rows);
    beta = scratch.take<float>(this->ld_rows);
    from_state = scratch.take<float>(this->ld_rows);
    key_norms = scratch.take<float>(this->ld_rows);
    query_norms = scratch.take<float>(this->ld_rows);
    dk_state = scratch.take<float>(rows * this->ld_k);
    dbeta = scratch.take<float>(this->ld_rows);
    this->bytes = scratch.used;
  }

 private:
  static ScalarDecayShape with_whole_blocks(ScalarDecayShape shape) {
    shape.max_rows = whole_blocks(shape.max_rows);
    return shape;
  }
};

/// Where column `col` of a block that pack_right made begins; multiples of 32.
template <class Operands>
FLASHTILE_INLINE typename Operands::Element* at_column(typename Operands::Element* block,
                                                       int64_t col) {
  return block + (kHasFloatElements<Operands> ? col : 2 * col);
}

/// Rows, normalised where that is asked for, on either side of a product. True where some value is
/// not finite.
template <class Operands>
bool pack_delta_rows(const ChunkRows& source, int64_t rows, int64_t dim, bool normalizes,
                     BothSides<Operands>& target, float* norms) {
  const RowList list(source, rows);
  const bool has_nonfinite =
      pack_rows({list.rows, source.dtype, source.stride}, rows, dim, target.floats, target.ld);
  if (normalizes) {
    set_inverse_norms(target.floats, target.ld, rows, norms);
    for (int64_t i = 0; i < rows; ++i) scale_row(target.floats + i * target.ld, dim, norms[i]);
  }
  target.set_left(0, rows, dim);
  target.set_right(0, rows, dim);
  return has_nonfinite;
}

/// Float rows, transposed, as the right side of a product.
template <class Operands>
void pack_floats_transposed(float* floats, int64_t ld_floats, int64_t rows, int64_t dim,
                            typename Operands::Element* to, int64_t ld) {
  const RowList list(reinterpret_cast<char*>(floats), ld_floats * 4, rows);
  Operands::pack_right_transposed({list.rows, DType::kF32, 1}, rows, dim, to, ld);
}

/// Keys, beta, factors and N. False: row by row.
template <class F, class Operands>
bool pack_delta_keys(const ScalarDecayBwdChunk& c, DeltaChunkScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const int64_t ld = scratch.ld_rows;
  const bool has_nonfinite =
      pack_delta_rows(c.k, c.rows, shape.head_dim, c.normalizes, scratch.k, scratch.key_norms);
  if (c.rows > 1 && has_nonfinite) return false;
  if (c.normalizes) {
    pack_floats_transposed<Operands>(scratch.k.floats, scratch.ld_k, c.rows, shape.head_dim,
                                     scratch.k_transposed, ld);
  } else {
    const RowList keys(c.k, c.rows);
    Operands::pack_right_transposed({keys.rows, c.k.dtype, c.k.stride}, c.rows, shape.head_dim,
                                    scratch.k_transposed, ld);
  }
  pack_scalars(c.beta, c.rows, scratch.beta, ld);
  ChunkFactors of_keys{scratch.from_state, scratch.factors.to_state, 0};
  set_chunk_factors<F>(c.gates, 1.0f, c.rows, &of_keys);
  set_chunk_factors<F>(c.gates, shape.scale, c.rows, &scratch.factors);
  for (int64_t begin = 0; begin < c.rows; begin += kChunkBlock) {
    const int64_t end = begin + kChunkBlock < c.rows ? begin + kChunkBlock : c.rows;
    Operands::multiply(end - begin, end, shape.head_dim, scratch.k.left + begin * scratch.ld_k,
                       scratch.ld_k, scratch.k_transposed, ld,
                       {.c = scratch.n.floats + begin * ld, .ldc = ld});
    for (int64_t i = begin; i < end; ++i) {
      float* n = scratch.n.floats + i * ld;
      float* decay = scratch.decay + i * ld;
      decay_factors_row<F>(c.gates, 1.0f, i, end, decay);
      for (int64_t j = 0; j < end; j += kLanes) {
        store(n + j, select(first_lanes(i - j), load(n + j) * load(decay + j), zero()));
      }
    }
    scratch.n.set_left(begin, end - begin, end);
    scratch.n.set_right(begin, end - begin, end);
  }
  return true;
}

/// V -> V^, and R, of some value dimensions. False: row by row.
template <class Operands>
bool find_values(const ScalarDecayBwdChunk& c, const cpu::ColumnRange& part,
                 DeltaChunkScratch<Operands>& scratch) {
  const ScalarDecayShape& shape = *c.shape;
  const int64_t ld = scratch.ld_v;
  const int64_t ld_rows = scratch.ld_rows;
  const bool has_nonfinite = pack_values(shape, c.v, c.rows, scratch.v.floats, ld);
  if (c.rows > 1 && has_nonfinite) return false;
  float* values = scratch.v.floats + part.first;
  float* residual = scratch.residual;  // from column 0 on
  auto* right = at_column<Operands>(scratch.v.right, part.first);
  const int64_t seeing = rows_that_see_state(c);
  if (seeing > 0) {
    const typename Operands::Element* state = nullptr;
    if constexpr (kHasFloatElements<Operands>) {
      state = c.state + part.first * scratch.ld_k;
    } else {
      state = scratch.state_left;
      for (int64_t j = 0; j < part.count; ++j) {
        for (int64_t d = 0; d < shape.head_dim; d += kLanes) {
          store_flush(scratch.state_left + j * scratch.ld_k + d,
                      load(c.state + (part.first + j) * scratch.ld_k + d));
        }
      }
    }
    Operands::multiply(part.count, seeing, shape.head_dim, state, scratch.ld_k,
                       scratch.k_transposed, ld_rows,
                       {.c = scratch.state_values, .ldc = ld_rows, .prefetch = &scratch.prefetch});
    const RowList list(reinterpret_cast<char*>(scratch.state_values), ld_rows * 4, part.count);
    pack_rows_transposed({list.rows, DType::kF32, 1}, part.count, seeing, residual, ld);
  }
  for (int64_t i = 0; i < seeing; ++i) {
    const Vf factor = broadcast(scratch.from_state[i]);
    for (int64_t d = 0; d < part.count; d += kLanes) {
      float* v = values + i * ld + d;
      store(v, fnma(load(residual + i * ld + d), factor, load(v)));
    }
  }
  bool is_finite = true;
  for (int64_t first = 0; first < c.rows; first += kSolvedRows) {
    const int64_t count = first + kSolvedRows < c.rows ? kSolvedRows : c.rows - first;
    float* block = values + first * ld;
    if (first > 0) {
      Operands::multiply(count, part.count, first, scratch.n.left + first * ld_rows, ld_rows, right,
                         ld, {.c = block, .ldc = ld, .alpha = -1.0f, .accumulate = true});
    }
    float m[kSolvedRows * kSolvedRows];
    for (int64_t i = 0; i < kSolvedRows; ++i) {
      const float* n = scratch.n.floats + (first + i) * ld_rows + first;
      for (int64_t j = 0; j < kSolvedRows; j += kLanes) {
        store(m + i * kSolvedRows + j, load(n + j) * load(scratch.beta + first + j));
      }
    }
    for (int64_t d = 0; d < part.count; d += kLanes) {
      if (solve_rows(m, kSolvedRows, count, block + d, ld)) is_finite = false;
    }
    for (int64_t i = 0; i < count; ++i) {
      const Vf beta = broadcast(scratch.beta[first + i]);
      for (int64_t d = 0; d < part.count; d += kLanes) {
        const Vf r = load(block + i * ld + d);
        store(residual + (first + i) * ld + d, r);
        store(block + i * ld + d, r * beta);
      }
    }
    right_from_floats(block, ld, count, part.count, nullptr, right + first * ld, ld);
  }
  return c.rows == 1 || is_finite;
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
