// SPDX-License-Identifier: Apache-2.0
#pragma once

// A chunk of rows of the delta rule with scalar decay is one of scalar decay
// (scalar_decay_chunk.hpp) whose values have been corrected by what the state and the rows before
// hold under their keys:
//
//   M_ij = beta_i D_ij k_i.k_j for j < i, else 0
//   (I + M) V^ = beta (V - exp(G) K S)
//
// with V^ in place of V from there on. Blocks of rows are solved from the first one on: products
// take off what the blocks before add, and what is left of a block is solved in registers.
//
// Normalised keys stay as they are: 1 / |k| is a weight of what enters the state and a factor of
// what K reads, 1 / |q| one of the output row.

#include "cpu/kernels/scalar_decay_chunk.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Rows of a block that is solved in registers.
inline constexpr int64_t kSolvedRows = 16;

/// Rows with those that fill the last block.
FLASHTILE_INLINE int64_t whole_blocks(int64_t rows) {
  return (rows + kSolvedRows - 1) / kSolvedRows * kSolvedRows;
}

/// The distance of rows in elements.
FLASHTILE_INLINE int64_t scalar_stride(const ChunkRows& scalars) {
  return scalars.row_stride / (scalars.dtype == DType::kF32 ? 4 : 2);
}

/// Rows of one number as floats, with zeros up to ld, and back; as if they were one row.
inline void pack_scalars(const ChunkRows& source, int64_t rows, float* dst, int64_t ld) {
  const void* row = source.data;
  pack_rows({&row, source.dtype, scalar_stride(source)}, 1, rows, dst, ld);
}
inline void store_scalars(const float* src, int64_t rows, const ChunkRows& target) {
  if (target.data == nullptr) return;
  void* row = target.data;
  unpack_rows(src, rows, 1, rows, {&row, target.dtype, scalar_stride(target)});
}

/// 1 / sqrt(x.x + 1e-6) of rows as pack_left leaves them.
template <typename T>
void set_inverse_norms(const T* x, int64_t ld, int64_t rows, float* norms) {
  for (int64_t r = 0; r < rows; ++r) {
    Vf sum = zero();
    for (int64_t d = 0; d < ld; d += kLanes) {
      const Vf a = load(x + r * ld + d);
      sum = fma(a, a, sum);
    }
    norms[r] = 1.0f / __builtin_sqrtf(reduce_add(sum) + 1e-6f);
  }
}

/// v_i -= sum over j < i of m_ij v_j for one vector of columns; rows from `count` on hold anything,
/// which reaches no other row. True where one of the first `count` rows is not finite.
inline bool solve_rows(const float* m, int64_t ld_m, int64_t count, float* v, int64_t ld_v) {
  Vf x[kSolvedRows];
  FLASHTILE_UNROLL
  for (int i = 0; i < kSolvedRows; ++i) x[i] = load(v + i * ld_v);
  FLASHTILE_UNROLL
  for (int j = 0; j + 1 < kSolvedRows; ++j) {
    FLASHTILE_UNROLL
    for (int i = j + 1; i < kSolvedRows; ++i) {
      x[i] = fnma(broadcast(m[i * ld_m + j]), x[j], x[i]);
    }
  }
  Mf is_finite = ~first_lanes(0);
  FLASHTILE_UNROLL
  for (int i = 0; i < kSolvedRows; ++i) {
    store(v + i * ld_v, x[i]);
    if (i < count) is_finite = is_finite & (abs(x[i]) < broadcast(__builtin_inff()));
  }
  return !all(is_finite);
}

/// V = beta (V - exp(G) K S), for rows before a reset; beta V behind it. `product` has room for K
/// S.
inline void subtract_state(const ChunkGates& gates, const ChunkFactors& factors, int64_t rows,
                           int64_t seeing, int64_t columns, const float* beta, const float* product,
                           float* v, int64_t ld) {
  for (int64_t i = 0; i < rows; ++i) {
    const float norm = gates.weight == nullptr ? 1.0f : gates.weight[i];
    const Vf strength = broadcast(beta[i]);
    const Vf from_state = broadcast(-beta[i] * norm * factors.from_state[i]);
    for (int64_t d = 0; d < columns; d += kLanes) {
      Vf x = load(v + i * ld + d) * strength;
      if (i < seeing) x = fma(load(product + i * ld + d), from_state, x);
      store(v + i * ld + d, x);
    }
  }
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
