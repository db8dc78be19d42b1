// SPDX-License-Identifier: Apache-2.0
#pragma once

// A chunk of rows of a state with scalar decay. G_i is the sum of log decays up to row i, S the
// state before the chunk, w the input weights, and D_ij = exp(G_i - G_j) w_j where row i sees the
// input of row j <= i, else 0:
//
//   P  = scale (Q K') D
//   O  = P V + scale exp(G) Q S
//   S' = exp(G_last) S + K' (exp(G_last - G) w V)
//
// With a divisor V has one more column, of ones: then S holds n behind it and O holds d. A row i
// sees the rows from the last reset on, and S only if there was none; so no exponent is positive
// and nothing that a reset has cut off is multiplied by zero instead. Q K' is worked out in blocks
// of rows, each only as far as its last row sees.

#include "cpu/kernels/linear_operands.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Rows of a block of Q K'; even, as pairs of bfloat16 want it.
inline constexpr int64_t kChunkBlock = 16;

/// Columns of a state: those of V, and one for n.
FLASHTILE_INLINE int64_t state_columns(const ScalarDecayShape& shape) {
  return shape.head_dim_v + (shape.divisor == ChunkDivisor::kNone ? 0 : 1);
}

/// A leading dimension for operands that are as deep as a state. Rows a multiple of 512 bytes apart
/// share half of the first cache's sets, and a strip of 128 of them does not fit in these.
FLASHTILE_INLINE int64_t deep_tile_ld(int64_t n) {
  const int64_t ld = padded(n);
  return ld % 128 == 0 && ld > 0 ? ld + 16 : ld;
}
inline int64_t scalar_decay_state_ld(const ScalarDecayShape& shape) {
  return deep_tile_ld(state_columns(shape));
}

/// Rows that see the state before the chunk; they are the first ones.
FLASHTILE_INLINE int64_t rows_before_reset(const ChunkGates& gates, int64_t rows) {
  int64_t count = 0;
  while (count < rows && gates.first[count] < 0) ++count;
  return count;
}

/// 2^(high + low), `low` being small.
template <class F>
FLASHTILE_INLINE Vf exp2_of_sum(Vf high, Vf low) {
  constexpr float kLn2 = 0.693147180559945309f;
  const Vf power = F::of(high);
  return fma(power, low * broadcast(kLn2), power);
}

/// The factors of a chunk: of the state in row i, of row j in the state behind the chunk, and of
/// the state before it there.
struct ChunkFactors {
  float* from_state;  ///< scale exp(G_i), 0 behind a reset
  float* to_state;    ///< exp(G_last - G_j), 0 before the last reset
  float state;        ///< exp(G_last), 0 if there is a reset
};

template <class F>
void set_chunk_factors(const ChunkGates& gates, float scale, int64_t rows, ChunkFactors* factors) {
  const int64_t seeing = rows_before_reset(gates, rows);
  const int32_t first = gates.first[rows - 1];
  const Vf last_high = broadcast(gates.high[rows - 1]);
  const Vf last_low = broadcast(gates.low[rows - 1]);
  for (int64_t j = 0; j < rows; j += kLanes) {
    Vf from = broadcast(1.0f);
    Vf to = from;
    if (gates.has_decay) {
      const Vf high = load(gates.high + j);
      const Vf low = load(gates.low + j);
      const Mf is_kept = ~first_lanes(first - j) & first_lanes(rows - j);
      const Mf is_seeing = first_lanes(seeing - j);
      const Vf nothing = broadcast(-__builtin_inff());
      from = exp2_of_sum<F>(select(is_seeing, high, nothing), low);
      to = F::of(select(is_kept, (last_high - high) + (last_low - low), nothing));
    }
    store(factors->from_state + j, from * broadcast(scale));
    store(factors->to_state + j, to);
  }
  factors->state = 1;
  if (gates.has_decay) {
    float lanes[kLanes];
    store(lanes, exp2_of_sum<F>(last_high, last_low));
    factors->state = first < 0 ? lanes[0] : 0.0f;
  }
}

/// One row of Q K' -> D scale (Q K'), 0 where row i does not see a row, for j < padded(n). `p` may
/// be `s`; T is float or Bf16. `weight` may be null.
template <class F, typename T>
void decay_row(const ChunkGates& gates, const float* weight, float scale, int64_t i, int64_t n,
               const float* s, T* p) {
  const int64_t first = gates.first[i];
  const Vf high = broadcast(gates.high[i]);
  const Vf low = broadcast(gates.low[i]);
  const Vf factor = broadcast(scale);
  for (int64_t j = 0; j < n; j += kLanes) {
    const Mf is_seen = first_lanes(i + 1 - j) & ~first_lanes(first - j);
    if (!any(is_seen)) {
      store_flush(p + j, zero());
      continue;
    }
    Vf x = load(s + j) * factor;
    if (gates.has_decay) {
      const Vf sum = (high - load(gates.high + j)) + (low - load(gates.low + j));
      x = x * F::of(select(is_seen, sum, broadcast(-__builtin_inff())));
    }
    if (weight != nullptr) x = x * load(weight + j);
    store_flush(p + j, select(is_seen, x, zero()));
  }
}

/// V as floats, with the column of ones where there is a divisor. True where some value is not
/// finite.
inline bool pack_values(const ScalarDecayShape& shape, const ChunkRows& v, int64_t rows, float* dst,
                        int64_t ld) {
  const RowList list(v, rows);
  const bool has_nonfinite =
      pack_rows({list.rows, v.dtype, v.stride}, rows, shape.head_dim_v, dst, ld);
  if (shape.divisor != ChunkDivisor::kNone) {
    for (int64_t r = 0; r < rows; ++r) dst[r * ld + shape.head_dim_v] = 1.0f;
  }
  return has_nonfinite;
}

/// S' = factor S + A'B with A (rows, m) and B (rows, n) as pack_right leaves them, where S' may be
/// S; S' = A'B where there is no state or nothing is left of it.
template <class Operands>
void update_state(int64_t m, int64_t n, int64_t rows, float factor, bool has_state,
                  const typename Operands::Element* a, int64_t lda,
                  const typename Operands::Element* b, int64_t ldb, const float* before,
                  float* behind, RowPrefetch* prefetch = nullptr) {
  float factors[kMaxListedRows];
  for (int64_t i = 0; i < m; ++i) factors[i] = factor;
  GemmC out{behind, ldb};
  if (has_state && factor != 0) {
    out.addend = before;
    out.addend_row_stride = ldb;
    if (factor != 1) out.row_scale = factors;
  }
  out.prefetch = prefetch;
  Operands::multiply_transposed(m, n, rows, a, lda, b, ldb, out);
}

/// x[i] *= w[i] for i < padded(n), where there are weights.
FLASHTILE_INLINE void multiply_by_weights(const float* weight, int64_t n, float* x) {
  if (weight == nullptr) return;
  for (int64_t j = 0; j < n; j += kLanes) store(x + j, load(x + j) * load(weight + j));
}

/// Divides by d, which stands behind the values, and returns 1 / divisor.
FLASHTILE_INLINE float inverse_divisor(ChunkDivisor divisor, float d, float floor) {
  if (divisor == ChunkDivisor::kSum) return 1.0f / (d + 1e-10f);
  const float size = __builtin_fabsf(d);
  return 1.0f / ((size > floor || size != size ? size : floor) + 1e-6f);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
