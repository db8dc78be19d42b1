// SPDX-License-Identifier: Apache-2.0
#pragma once

// One row of one state, where the caller's memory has it (decoding). Formulas are in
// recurrent_fwd.hpp and scalar_decay_chunk.hpp. The state is read and written once, in the order of
// memory; what a correction reads of it comes first, and leaves it in the second cache.

#include "cpu/kernels/recurrent_fwd.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Vectors of a row of the state that are worked on together.
inline constexpr int kStepVecs = 2 * kTileVecs;

/// Some columns of a state: whole vectors, except for a single one.
struct StepColumns {
  const StateStep& step;
  const RecurrentInputs& in;
  int64_t column;

  float* row(int64_t i) const { return step.state + i * step.ld + column; }
  int64_t count() const { return step.inputs.head_dim_v - column; }

  template <int kVecs>
  FLASHTILE_INLINE Vf load_at(const float* p) const {
    return kVecs > 1 ? load(p) : load_partial(p, count());
  }
  template <int kVecs>
  FLASHTILE_INLINE void store_at(float* p, Vf x) const {
    if (kVecs > 1) return store(p, x);
    store_partial(p, x, count());
  }
};

/// sum = sum over i of x_i S_i.
template <int kVecs>
FLASHTILE_INLINE void read_columns(const StepColumns& c, const float* x, StripVectors<kVecs>& sum) {
  FLASHTILE_UNROLL
  for (int n = 0; n < kVecs; ++n) sum[n] = zero();
  for (int64_t i = 0; i < c.step.inputs.head_dim; ++i) {
    const Vf factor = broadcast(x[i]);
    const float* row = c.row(i);
    FLASHTILE_UNROLL
    for (int n = 0; n < kVecs; ++n) {
      sum[n] = fma(factor, c.template load_at<kVecs>(row + n * kLanes), sum[n]);
    }
  }
}

template <int kVecs>
FLASHTILE_INLINE void clear_columns(const StepColumns& c) {
  for (int64_t i = 0; i < c.step.inputs.head_dim; ++i) {
    if (c.in.decay[i] != 0) continue;
    for (int n = 0; n < kVecs; ++n) c.template store_at<kVecs>(c.row(i) + n * kLanes, zero());
  }
}

FLASHTILE_INLINE void prefetch_next_row(const StateStep& step, int64_t i) {
  if (step.next_state == nullptr) return;
  constexpr int64_t kLineFloats = 16;
  const float* row = step.next_state + i * step.ld;
  for (int64_t j = 0; j < step.inputs.head_dim_v; j += kLineFloats) {
    __builtin_prefetch(row + j, /*rw=*/1, /*locality=*/2);
  }
}

/// The columns of kVecs vectors: the state goes past the row, and every member reads it.
template <RecurrentUpdate kUpdate, bool kReadsBefore, int kVecs>
void step_columns(const StepColumns& c) {
  constexpr bool kCorrects = kUpdate != RecurrentUpdate::kAdd;
  const RecurrentChunk& x = c.step.inputs;
  const RecurrentInputs& in = c.in;
  StripVectors<kVecs> value, added, sum;
  const auto read_members = [&](int64_t first) {
    for (int64_t m = first; m < x.num_members; ++m) {
      read_columns<kVecs>(c, in.q + m * in.ld_k, sum);
      for (int n = 0; n < kVecs; ++n) {
        store(in.out + m * in.ld_v + c.column + n * kLanes, sum[n]);
      }
    }
  };
  // What a reset clears is read before.
  const bool has_read = kReadsBefore && in.resets[0] != 0;
  if constexpr (kReadsBefore) read_members(has_read ? 0 : 1);
  if (kUpdate == RecurrentUpdate::kLowRank) read_columns<kVecs>(c, in.read, added);
  if (in.resets[0] != 0) clear_columns<kVecs>(c);
  if (kUpdate == RecurrentUpdate::kDelta) read_columns<kVecs>(c, in.read, added);
  FLASHTILE_UNROLL
  for (int n = 0; n < kVecs; ++n) {
    value[n] = load(in.v + c.column + n * kLanes) * broadcast(c.step.weight);
    if (kUpdate == RecurrentUpdate::kDelta) value[n] = (value[n] - added[n]) * broadcast(*in.beta);
    sum[n] = zero();
  }
  for (int64_t i = 0; i < x.head_dim; ++i) {
    const Vf decay = broadcast(in.decay[i]);
    const Vf key = broadcast(in.k[i]);
    const Vf query = broadcast(in.q[i]);
    float* row = c.row(i);
    if (kCorrects && c.column == 0) prefetch_next_row(c.step, i);
    FLASHTILE_UNROLL
    for (int n = 0; n < kVecs; ++n) {
      Vf s = c.template load_at<kVecs>(row + n * kLanes);
      if constexpr (kReadsBefore) sum[n] = fma(query, s, sum[n]);
      s = fma(key, value[n], s * decay);
      if constexpr (kUpdate == RecurrentUpdate::kLowRank) s = fma(broadcast(in.b[i]), added[n], s);
      if constexpr (!kReadsBefore) sum[n] = fma(query, s, sum[n]);
      c.template store_at<kVecs>(row + n * kLanes, s);
    }
  }
  for (int n = 0; n < kVecs && !has_read; ++n) store(in.out + c.column + n * kLanes, sum[n]);
  if constexpr (!kReadsBefore) read_members(1);
}

template <RecurrentUpdate kUpdate, bool kReadsBefore>
void step_state(const StateStep& step, const RecurrentInputs& in) {
  const int64_t end = step.inputs.head_dim_v;
  StepColumns c{step, in, 0};
  for (; c.column + kStepVecs * kLanes <= end; c.column += kStepVecs * kLanes) {
    step_columns<kUpdate, kReadsBefore, kStepVecs>(c);
  }
  for (; c.column + kTileVecs * kLanes <= end; c.column += kTileVecs * kLanes) {
    step_columns<kUpdate, kReadsBefore, kTileVecs>(c);
  }
  for (; c.column < end; c.column += kLanes) step_columns<kUpdate, kReadsBefore, 1>(c);
}

/// The sum of keys goes past the row.
inline void step_norm(const StateStep& step, const RecurrentInputs& in) {
  for (int64_t i = 0; i < step.inputs.head_dim && step.norm != nullptr; ++i) {
    float& n = step.norm[i * step.norm_stride];
    n = (in.decay[i] == 0 ? 0 : in.decay[i] * n) + step.weight * in.k[i];
  }
}

/// What the output of a member is multiplied by.
inline float step_factor(const StateStep& step, const float* q) {
  if (step.divisor == ChunkDivisor::kNone) return 1;
  float sum = 0;
  for (int64_t i = 0; i < step.inputs.head_dim; ++i) sum += q[i] * step.norm[i * step.norm_stride];
  if (step.divisor == ChunkDivisor::kSum) return 1 / (sum + 1e-10f);
  const float least = step.divisor == ChunkDivisor::kAtLeastOne ? 1 : step.floor;
  const float size = __builtin_fabsf(sum);
  return 1 / ((size < least ? least : size) + 1e-6f);
}

/// Divides outputs, adds what they take of the row's own v, and stores them.
inline void finish_step(const StateStep& step, const RecurrentInputs& in) {
  const RecurrentChunk& x = step.inputs;
  for (int64_t m = 0; m < x.num_members; ++m) {
    float* out = in.out + m * in.ld_v;
    const Vf factor = broadcast(step_factor(step, in.q + m * in.ld_k));
    const Vf own = broadcast(x.bonus == nullptr ? 0.0f : in.own[m]);
    for (int64_t j = 0; j < x.head_dim_v; j += kLanes) {
      Vf value = load(out + j) * factor;
      if (x.bonus != nullptr) value = fma(own, load(in.v + j), value);
      if (step.skip != nullptr) {
        value = fma(load_partial(step.skip + j, x.head_dim_v - j), load(in.v + j), value);
      }
      store(out + j, value);
    }
    store_chunk_rows(out, in.ld_v, 1, x.head_dim_v, x.out[m]);
  }
}

inline void state_step(const StateStep& step) {
  const RecurrentChunk& x = step.inputs;
  RecurrentInputs in(x.scratch, 1, x.head_dim, x.head_dim_v, x.num_members);
  pack_recurrent_inputs(x, in);
  step_norm(step, in);
  if (x.update == RecurrentUpdate::kDelta) {
    step_state<RecurrentUpdate::kDelta, false>(step, in);
  } else if (x.update == RecurrentUpdate::kLowRank) {
    step_state<RecurrentUpdate::kLowRank, false>(step, in);
  } else if (x.reads_before) {
    step_state<RecurrentUpdate::kAdd, true>(step, in);
  } else {
    step_state<RecurrentUpdate::kAdd, false>(step, in);
  }
  finish_step(step, in);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
