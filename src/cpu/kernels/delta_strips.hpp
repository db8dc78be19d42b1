// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a row of time does to a strip of a state of the delta family (recurrent_fwd.hpp): decays,
// sums of keys times values, and what queries read.

#include "cpu/kernels/recurrent_bwd.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// One row of time for one strip of `depth` rows, with the decay of each of its rows or columns:
/// kAdds sums of keys times values, what kReads queries read.
struct DeltaStripRow {
  int64_t depth;
  const float* decay;
  const float* key[2];    ///< `depth` numbers each
  const float* value[2];  ///< columns
  const float* query[2];  ///< `depth` numbers each
  float* sum[2];          ///< columns
};

/// Decays, makes the first kAddsBefore additions, reads, makes the rest.
template <int kAddsBefore, int kAdds, int kReads, bool kDecaysColumns, int kVecs>
void delta_strip_row(const DeltaStripRow& r, float* state) {
  const int64_t depth = r.depth;
  const float* decays = r.decay;
  const float* first_key = r.key[0];
  const float* second_key = r.key[kAdds - 1];
  const float* first_query = r.query[0];
  const float* second_query = r.query[kReads - 1];
  StripVectors<kVecs> decay, first_value, second_value, first_sum, second_sum;
  FLASHTILE_UNROLL
  for (int n = 0; n < kVecs; ++n) {
    decay[n] = kDecaysColumns ? load(r.decay + n * kLanes) : zero();
    first_value[n] = load(r.value[0] + n * kLanes);
    second_value[n] = load(r.value[kAdds - 1] + n * kLanes);
    first_sum[n] = second_sum[n] = zero();
  }
  for (int64_t i = 0; i < depth; ++i) {
    float* row = state + i * kStripWidth;
    const Vf row_decay = kDecaysColumns ? zero() : broadcast(decays[i]);
    const Vf key = broadcast(first_key[i]);
    const Vf query = broadcast(first_query[i]);
    FLASHTILE_UNROLL
    for (int n = 0; n < kVecs; ++n) {
      Vf s = load(row + n * kLanes) * (kDecaysColumns ? decay[n] : row_decay);
      if constexpr (kAddsBefore > 0) s = fma(key, first_value[n], s);
      if constexpr (kAddsBefore > 1) s = fma(broadcast(second_key[i]), second_value[n], s);
      first_sum[n] = fma(query, s, first_sum[n]);
      if constexpr (kReads > 1) second_sum[n] = fma(broadcast(second_query[i]), s, second_sum[n]);
      if constexpr (kAddsBefore == 0) s = fma(key, first_value[n], s);
      if constexpr (kAddsBefore < 2 && kAdds > 1) {
        s = fma(broadcast(second_key[i]), second_value[n], s);
      }
      store(row + n * kLanes, s);
    }
  }
  FLASHTILE_UNROLL
  for (int n = 0; n < kVecs; ++n) {
    store(r.sum[0] + n * kLanes, first_sum[n]);
    if constexpr (kReads > 1) store(r.sum[1] + n * kLanes, second_sum[n]);
  }
}

template <int kAddsBefore, int kAdds, int kReads, bool kDecaysColumns, int kVecs = kTileVecs>
FLASHTILE_INLINE void delta_strip_row_of(int64_t num_vecs, const DeltaStripRow& r, float* state) {
  if (num_vecs >= kVecs) {
    return delta_strip_row<kAddsBefore, kAdds, kReads, kDecaysColumns, kVecs>(r, state);
  }
  if constexpr (kVecs > 1) {
    delta_strip_row_of<kAddsBefore, kAdds, kReads, kDecaysColumns, kVecs - 1>(num_vecs, r, state);
  }
}

/// Lanes of vector n of row i whose decay is exactly 0; a decay for each row, or for each column.
FLASHTILE_INLINE Mf is_cleared(const float* decay, bool decays_columns, int64_t i, int n) {
  return (decays_columns ? load(decay + n * kLanes) : broadcast(decay[i])) == zero();
}

/// Decays and adds a key times a value, which `clears` leaves out where the decay is 0, whatever
/// was there.
inline void decay_strip(int64_t num_vecs, int64_t depth, const float* decay, bool decays_columns,
                        const float* key, const float* value, bool clears, float* state) {
  for (int64_t i = 0; i < depth; ++i) {
    for (int n = 0; n < num_vecs; ++n) {
      float* at = state + i * kStripWidth + n * kLanes;
      const Mf is_zero = is_cleared(decay, decays_columns, i, n);
      const Vf factor = decays_columns ? load(decay + n * kLanes) : broadcast(decay[i]);
      const Vf added = broadcast(key[i]) * load(value + n * kLanes);
      const Vf kept = select(is_zero, zero(), load(at) * factor);
      store(at, kept + select(is_zero, clears ? zero() : added, added));
    }
  }
}

/// What is decayed by exactly 0 becomes 0; all else stays.
inline void clear_strip(int64_t num_vecs, int64_t depth, const float* decay, bool decays_columns,
                        float* state) {
  for (int64_t i = 0; i < depth; ++i) {
    for (int n = 0; n < num_vecs; ++n) {
      float* at = state + i * kStripWidth + n * kLanes;
      store(at, select(is_cleared(decay, decays_columns, i, n), zero(), load(at)));
    }
  }
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
