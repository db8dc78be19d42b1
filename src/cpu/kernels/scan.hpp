// SPDX-License-Identifier: Apache-2.0
#pragma once

// Scans whose channels have a state of a few numbers; lanes are channels.
//
//   hgrn   S = exp(g) S + x, o = S
//   rwkv4  alpha and beta relative to exp(eps): o = (e1 alpha + e2 v) / (e1 beta + e2) with weights
//          exp(eps) and exp(u + k), then alpha = e1 alpha + e2 v, beta = e1 beta + e2 with exp(w +
//          eps) and exp(k), each pair relative to its larger exponent
//
// Backward a chunk's states are worked out once more from the one before it.

#include "cpu/kernels/linear_operands.hpp"
#include "cpu/kernels/recurrent_fwd.hpp"
#include "cpu/kernels/scan_types.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Blocks of a chunk in float32, rows of kScanChannels.
struct ScanBlocks {
  Scratch scratch;
  int64_t max_rows;

  ScanBlocks(char* memory, int64_t rows) : scratch{memory}, max_rows(rows) {}
  float* take(int64_t count = 1) { return scratch.take<float>(count * max_rows * kScanChannels); }
};

/// Of a kernel that takes so many blocks.
template <int64_t kBlocks>
int64_t scan_scratch_bytes(int64_t max_rows, int64_t) {
  ScanBlocks blocks(nullptr, max_rows);
  blocks.take(kBlocks);
  return blocks.scratch.used;
}

inline void pack_scan_rows(const ScanChunk& c, const ChunkRows& source, float* to) {
  if (source.data != nullptr) pack_chunk_rows(source, c.rows, c.channels, 1.0f, to, kScanChannels);
}

inline void store_scan_rows(const ScanChunk& c, const float* from, const ChunkRows& target) {
  store_chunk_rows(from, kScanChannels, c.rows, c.channels, target);
}

/// factor x, and 0 where factor is 0 whatever x is.
FLASHTILE_INLINE Vf reset_product(Vf factor, Vf x) {
  return select(factor == zero(), zero(), factor * x);
}

/// Adds a vector of sums to doubles.
FLASHTILE_INLINE void add_to_doubles(Vf x, double* sums) {
  float lanes[kLanes];
  store(lanes, x);
  for (int i = 0; i < kLanes; ++i) sums[i] += static_cast<double>(lanes[i]);
}

// ---- hgrn ----

/// exp(g) in place, then all states of the chunk; row t of `states` is behind row t.
inline void gated_sum_states(const ScanChunk& c, const float* x, float* decay, float* states) {
  for (int64_t n = 0; n < c.rows * kScanChannels; n += kLanes)
    store(decay + n, exp(load(decay + n)));
  for (int64_t j = 0; j < c.channels; j += kLanes) {
    Vf s = load(c.state + j);
    for (int64_t n = j; n < c.rows * kScanChannels; n += kScanChannels) {
      s = reset_product(load(decay + n), s) + load(x + n);
      store(states + n, s);
    }
  }
}

inline constexpr auto hgrn_fwd_scratch_bytes = scan_scratch_bytes<3>;

inline void hgrn_fwd_chunk(const ScanChunk& c) {
  ScanBlocks blocks(c.scratch, c.max_rows);
  float* x = blocks.take();
  float* decay = blocks.take();
  float* states = blocks.take();
  pack_scan_rows(c, c.v, x);
  pack_scan_rows(c, c.g, decay);
  gated_sum_states(c, x, decay, states);
  store_scan_rows(c, states, c.out);
  const float* last = states + (c.rows - 1) * kScanChannels;
  for (int64_t j = 0; j < c.channels; j += kLanes) store(c.state + j, load(last + j));
}

inline constexpr auto hgrn_bwd_scratch_bytes = scan_scratch_bytes<5>;

inline void hgrn_bwd_chunk(const ScanChunk& c) {
  ScanBlocks blocks(c.scratch, c.max_rows);
  float* x = blocks.take();
  float* decay = blocks.take();
  float* states = blocks.take();
  float* dout = blocks.take();
  float* dg = blocks.take();
  pack_scan_rows(c, c.v, x);
  pack_scan_rows(c, c.g, decay);
  pack_scan_rows(c, c.dout, dout);
  gated_sum_states(c, x, decay, states);
  for (int64_t j = 0; j < c.channels; j += kLanes) {
    Vf ds = load(c.dstate + j);
    for (int64_t t = c.rows - 1; t >= 0; --t) {
      const int64_t n = t * kScanChannels + j;
      const Vf before = load(t == 0 ? c.state + j : states + n - kScanChannels);
      const Vf dx = ds + load(dout + n);
      ds = reset_product(load(decay + n), dx);
      store(x + n, dx);
      store(dg + n, reset_product(ds, before));
    }
    store(c.dstate + j, ds);
  }
  store_scan_rows(c, x, c.dv);
  store_scan_rows(c, dg, c.dg);
}

// ---- rwkv4 ----

/// What is kept and what is added, relative to the larger exponent.
struct MeanWeights {
  Vf top, kept, added;

  FLASHTILE_INLINE MeanWeights(Vf kept_exponent, Vf added_exponent) {
    top = max(kept_exponent, added_exponent);
    kept = exp(kept_exponent - top);
    added = exp(added_exponent - top);
  }
};

/// The state of kLanes channels.
struct MeanState {
  Vf alpha, beta, eps;

  FLASHTILE_INLINE static MeanState from(const float* state, int64_t j) {
    return {load(state + j), load(state + kScanChannels + j), load(state + 2 * kScanChannels + j)};
  }
  FLASHTILE_INLINE void to(float* state, int64_t j) const {
    store(state + j, alpha);
    store(state + kScanChannels + j, beta);
    store(state + 2 * kScanChannels + j, eps);
  }
  FLASHTILE_INLINE MeanState behind(Vf w, Vf k, Vf v) const {
    const MeanWeights by(w + eps, k);
    return {fma(by.kept, alpha, by.added * v), fma(by.kept, beta, by.added), by.top};
  }
};

inline constexpr auto rwkv4_fwd_scratch_bytes = scan_scratch_bytes<3>;

inline void rwkv4_fwd_chunk(const ScanChunk& c) {
  ScanBlocks blocks(c.scratch, c.max_rows);
  float* ks = blocks.take();
  float* vs = blocks.take();
  float* out = blocks.take();
  pack_scan_rows(c, c.k, ks);
  pack_scan_rows(c, c.v, vs);
  for (int64_t j = 0; j < c.channels; j += kLanes) {
    const Vf w = load(c.parameters + j);
    const Vf u = load(c.parameters + kScanChannels + j);
    MeanState state = MeanState::from(c.state, j);
    for (int64_t n = j; n < c.rows * kScanChannels; n += kScanChannels) {
      const Vf k = load(ks + n);
      const Vf v = load(vs + n);
      if (c.out.data != nullptr) {
        const MeanWeights by(state.eps, u + k);
        const Vf sum = fma(by.kept, state.alpha, by.added * v);
        store(out + n, sum / fma(by.kept, state.beta, by.added));
      }
      state = state.behind(w, k, v);
    }
    state.to(c.state, j);
  }
  store_scan_rows(c, out, c.out);
}

inline constexpr auto rwkv4_bwd_scratch_bytes = scan_scratch_bytes<5 + 3>;

/// One row back, for kLanes channels: `state` is the one before the row, the gradient goes from
/// behind it to before it.
struct MeanGradient {
  MeanState d;  ///< of the state
  Vf dk, dv, dw, du;

  FLASHTILE_INLINE void step(const MeanState& state, Vf w, Vf k, Vf v) {
    const Vf kept_exponent = w + state.eps;
    const MeanWeights by(kept_exponent, k);
    const Vf dkept = fma(d.alpha, state.alpha, d.beta * state.beta) * by.kept;
    const Vf dadded = fma(d.alpha, v, d.beta) * by.added;
    const Vf dtop = d.eps - dkept - dadded;
    // The maximum's gradient goes to the larger exponent, half to each where they are equal.
    const Vf behind = select(kept_exponent > k, dtop, zero());
    const Vf share = select(kept_exponent == k, broadcast(0.5f) * dtop, behind);
    dk = dadded + (dtop - share);
    dv = d.alpha * by.added;
    d = {d.alpha * by.kept, d.beta * by.kept, dkept + share};
    dw = dw + d.eps;
  }
  FLASHTILE_INLINE void output(const MeanState& state, Vf u, Vf k, Vf v, Vf dout) {
    const MeanWeights by(state.eps, u + k);
    const Vf sum = fma(by.kept, state.alpha, by.added * v);
    const Vf divisor = fma(by.kept, state.beta, by.added);
    const Vf dsum = dout / divisor;
    const Vf mean = sum / divisor;
    // A row that sees its own value alone has exactly that mean, and no gradient of its weight.
    const Vf dadded = dsum * (v - mean) * by.added;
    d.alpha = fma(dsum, by.kept, d.alpha);
    d.beta = fnma(dsum * mean, by.kept, d.beta);
    d.eps = fma(dsum * fnma(mean, state.beta, state.alpha), by.kept, d.eps);
    du = du + dadded;
    dv = fma(dsum, by.added, dv);
    dk = dk + dadded;
  }
};

inline void rwkv4_bwd_chunk(const ScanChunk& c) {
  ScanBlocks blocks(c.scratch, c.max_rows);
  float* ks = blocks.take();
  float* vs = blocks.take();
  float* dout = blocks.take();
  float* dk = blocks.take();
  float* dv = blocks.take();
  float* states = blocks.take(3);  // three rows for each row, before it
  pack_scan_rows(c, c.k, ks);
  pack_scan_rows(c, c.v, vs);
  pack_scan_rows(c, c.dout, dout);
  for (int64_t j = 0; j < c.channels; j += kLanes) {
    const Vf w = load(c.parameters + j);
    const Vf u = load(c.parameters + kScanChannels + j);
    MeanState state = MeanState::from(c.state, j);
    for (int64_t t = 0; t < c.rows; ++t) {
      state.to(states + t * 3 * kScanChannels, j);
      state = state.behind(w, load(ks + t * kScanChannels + j), load(vs + t * kScanChannels + j));
    }
    MeanGradient gradient{MeanState::from(c.dstate, j), zero(), zero(), zero(), zero()};
    for (int64_t t = c.rows - 1; t >= 0; --t) {
      const int64_t n = t * kScanChannels + j;
      const MeanState before = MeanState::from(states + t * 3 * kScanChannels, j);
      gradient.step(before, w, load(ks + n), load(vs + n));
      gradient.output(before, u, load(ks + n), load(vs + n), load(dout + n));
      store(dk + n, gradient.dk);
      store(dv + n, gradient.dv);
    }
    gradient.d.to(c.dstate, j);
    add_to_doubles(gradient.dw, c.dparameters + j);
    add_to_doubles(gradient.du, c.dparameters + kScanChannels + j);
  }
  store_scan_rows(c, dk, c.dk);
  store_scan_rows(c, dv, c.dv);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
