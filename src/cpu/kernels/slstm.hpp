// SPDX-License-Identifier: Apache-2.0
#pragma once

// sLSTM, row by row; lanes are elements of a head. With h', c', n', m' the state before a row:
//
//   i~ = i + R_i h', f~, z~, o~ likewise
//   m = max(logsigmoid(f~) + m', i~), e = exp(i~ - m), k = exp(logsigmoid(f~) + m' - m)
//   c = k c' + e tanh(z~), n = k n' + e, h = sigmoid(o~) c / n
//
// Backward, with m held constant:
//
//   do~ = dh h (1 - sigmoid(o~)), dc += dh sigmoid(o~) / n, dn -= dh h / n
//   di~ = e (dc tanh(z~) + dn), dz~ = dc e (1 - tanh(z~)^2), df~ = k (dc c' + dn n') sigmoid(-f~)
//   dh' = sum of R' d~, dc' = k dc, dn' = k dn, and dR = sum of d~ h'' as one product for a chunk
//
// Products of R and a row are sums of R's rows over strips of columns, a sum for each gate.

#include "cpu/kernels/scan.hpp"
#include "cpu/kernels/slstm_types.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Vectors of a strip: with four gates as many sums as hide the latency of a multiply-add.
inline constexpr int64_t kSlstmVecs = 2;
inline constexpr int64_t kSlstmStrip = kSlstmVecs * kLanes;

inline int64_t slstm_ld(int64_t dim) { return (dim + kSlstmStrip - 1) / kSlstmStrip * kSlstmStrip; }

/// A chunk as floats, rows of ld.
struct SlstmRows {
  float* gates[kSlstmGates];  ///< i~, f~, z~, o~; backward then their gradients
  float* states;              ///< c, n, m, h before each row, and behind the last one
  float* hidden;              ///< out, or dout
  float* before;              ///< h before each row
  int64_t ld;
  int64_t bytes;

  SlstmRows(char* memory, int64_t max_rows, int64_t row_floats) : ld(row_floats) {
    Scratch scratch{memory};
    for (float*& gate : gates) gate = scratch.take<float>(max_rows * ld);
    states = scratch.take<float>((max_rows + 1) * kSlstmGates * ld);
    hidden = scratch.take<float>(max_rows * ld);
    before = scratch.take<float>(max_rows * ld);
    bytes = scratch.used;
  }
  float* state(int64_t t) const { return states + t * kSlstmGates * ld; }
};

inline int64_t slstm_scratch_bytes(int64_t max_rows, int64_t dim) {
  return SlstmRows(nullptr, max_rows, slstm_ld(dim)).bytes;
}

inline void slstm_pack_weight(const ChunkRows& weight, int64_t dim, float* by_hidden,
                              float* by_gate) {
  const RowList list(weight, dim);
  const RowSource source{list.rows, weight.dtype, weight.stride};
  pack_rows_transposed(source, dim, dim, by_hidden, slstm_ld(dim));
  if (by_gate != nullptr) pack_rows(source, dim, dim, by_gate, slstm_ld(dim));
}

/// Sums of x[i] times row i of four matrices, for the kSlstmVecs vectors of a strip.
struct SlstmSums {
  Vf of[kSlstmGates][kSlstmVecs];

  /// `x` are the factors for each matrix.
  FLASHTILE_INLINE SlstmSums(const float* const* x, const float* matrices, int64_t dim,
                             int64_t ld) {
    for (auto& sums : of) {
      for (Vf& sum : sums) sum = zero();
    }
    for (int64_t i = 0; i < dim; ++i) {
      for (int64_t gate = 0; gate < kSlstmGates; ++gate) {
        const Vf factor = broadcast(x[gate][i]);
        const float* row = matrices + (gate * dim + i) * ld;
        for (int64_t n = 0; n < kSlstmVecs; ++n) {
          of[gate][n] = fma(factor, load(row + n * kLanes), of[gate][n]);
        }
      }
    }
  }
};

/// The four gates of a row: + R h', in place.
inline void slstm_add_hidden(const SlstmChunk& c, const SlstmRows& x, int64_t t,
                             const float* hidden) {
  const float* const factors[kSlstmGates] = {hidden, hidden, hidden, hidden};
  for (int64_t j = 0; j < c.ld; j += kSlstmStrip) {
    const SlstmSums sums(factors, c.by_hidden + j, c.dim, c.ld);
    for (int64_t gate = 0; gate < kSlstmGates; ++gate) {
      float* const to = x.gates[gate] + t * c.ld + j;
      for (int64_t n = 0; n < kSlstmVecs; ++n) {
        store(to + n * kLanes, load(to + n * kLanes) + sums.of[gate][n]);
      }
    }
  }
}

/// kLanes elements behind a row, from the gates and the state before it.
struct SlstmCell {
  Vf forget, input, output;  ///< f~, tanh(z~), sigmoid(o~)
  Vf added, kept;
  Vf c, n, m;

  FLASHTILE_INLINE SlstmCell(const SlstmRows& x, int64_t at, const float* before, int64_t j) {
    const Vf added_exponent = load(x.gates[0] + at);
    forget = load(x.gates[1] + at);
    input = tanh(load(x.gates[2] + at));
    output = sigmoid(load(x.gates[3] + at));
    const Vf kept_exponent = load(before + 2 * x.ld + j) - softplus(-forget);
    m = max(kept_exponent, added_exponent);
    added = exp(added_exponent - m);
    kept = exp(kept_exponent - m);
    c = fma(added, input, reset_product(kept, load(before + j)));
    n = added + reset_product(kept, load(before + x.ld + j));
  }
  FLASHTILE_INLINE Vf hidden() const { return output * c / n; }
};

/// All rows forward; states before each row and behind the last one are kept, and gates with what
/// hidden states add.
inline void slstm_states(const SlstmChunk& c, const SlstmRows& x) {
  for (int64_t gate = 0; gate < kSlstmGates; ++gate) {
    pack_chunk_rows(c.gates[gate], c.rows, c.dim, 1.0f, x.gates[gate], c.ld);
  }
  for (int64_t j = 0; j < kSlstmGates * c.ld; j += kLanes) store(x.states + j, load(c.state + j));
  for (int64_t t = 0; t < c.rows; ++t) {
    const float* before = x.state(t);
    float* behind = x.state(t + 1);
    slstm_add_hidden(c, x, t, before + 3 * c.ld);
    for (int64_t j = 0; j < c.ld; j += kLanes) {
      const SlstmCell cell(x, t * c.ld + j, before, j);
      store(behind + j, cell.c);
      store(behind + c.ld + j, cell.n);
      store(behind + 2 * c.ld + j, cell.m);
      store(behind + 3 * c.ld + j, cell.hidden());
    }
  }
}

inline void slstm_fwd_chunk(const SlstmChunk& c) {
  const SlstmRows x(c.scratch, c.max_rows, c.ld);
  slstm_states(c, x);
  const float* last = x.state(c.rows);
  for (int64_t j = 0; j < kSlstmGates * c.ld; j += kLanes) store(c.state + j, load(last + j));
  store_chunk_rows(x.state(1) + 3 * c.ld, kSlstmGates * c.ld, c.rows, c.dim, c.out);
}

/// Gates of a row become their gradients, and the gradient of c and n that before it.
inline void slstm_cell_gradients(const SlstmChunk& c, const SlstmRows& x, int64_t t) {
  const float* before = x.state(t);
  const Vf one = broadcast(1.0f);
  for (int64_t j = 0; j < c.ld; j += kLanes) {
    const int64_t at = t * c.ld + j;
    const SlstmCell cell(x, at, before, j);
    const Vf hidden = cell.hidden();
    const Vf dh = load(c.dstate + 3 * c.ld + j) + load(x.hidden + at);
    const Vf dc = load(c.dstate + j) + dh * cell.output / cell.n;
    const Vf dn = load(c.dstate + c.ld + j) - dh * hidden / cell.n;
    const Vf dkept = fma(dc, load(before + j), dn * load(before + c.ld + j));
    store(x.gates[0] + at, fma(dc, cell.input, dn) * cell.added);
    store(x.gates[1] + at, reset_product(cell.kept, dkept) * sigmoid(-cell.forget));
    store(x.gates[2] + at, dc * cell.added * fnma(cell.input, cell.input, one));
    store(x.gates[3] + at, dh * hidden * (one - cell.output));
    store(c.dstate + j, reset_product(cell.kept, dc));
    store(c.dstate + c.ld + j, reset_product(cell.kept, dn));
  }
}

/// The gradient of h before a row, from those of its gates.
inline void slstm_hidden_gradient(const SlstmChunk& c, const SlstmRows& x, int64_t t) {
  const int64_t at = t * c.ld;
  const float* const factors[kSlstmGates] = {x.gates[0] + at, x.gates[1] + at, x.gates[2] + at,
                                             x.gates[3] + at};
  for (int64_t j = 0; j < c.ld; j += kSlstmStrip) {
    const SlstmSums sums(factors, c.by_gate + j, c.dim, c.ld);
    for (int64_t n = 0; n < kSlstmVecs; ++n) {
      store(c.dstate + 3 * c.ld + j + n * kLanes,
            (sums.of[0][n] + sums.of[1][n]) + (sums.of[2][n] + sums.of[3][n]));
    }
  }
}

inline void slstm_bwd_chunk(const SlstmChunk& c) {
  const SlstmRows x(c.scratch, c.max_rows, c.ld);
  slstm_states(c, x);
  pack_chunk_rows(c.dout, c.rows, c.dim, 1.0f, x.hidden, c.ld);
  for (int64_t t = 0; t < c.rows; ++t) {
    for (int64_t j = 0; j < c.ld; j += kLanes) {
      store(x.before + t * c.ld + j, load(x.state(t) + 3 * c.ld + j));
    }
  }
  for (int64_t t = c.rows - 1; t >= 0; --t) {
    slstm_cell_gradients(c, x, t);
    slstm_hidden_gradient(c, x, t);
  }
  for (int64_t gate = 0; gate < kSlstmGates; ++gate) {
    store_chunk_rows(x.gates[gate], c.ld, c.rows, c.dim, c.dgates[gate]);
    if (c.dweight == nullptr) continue;
    gemm(c.dim, c.dim, c.rows, {x.gates[gate], 1, c.ld}, x.before, c.ld,
         {.c = c.dweight + gate * c.dim * c.ld, .ldc = c.ld, .accumulate = true});
  }
}

inline constexpr SlstmKernels kSlstmKernels = {slstm_ld, slstm_scratch_bytes, slstm_pack_weight,
                                               slstm_fwd_chunk, slstm_bwd_chunk};

}  // namespace flashtile::cpu::FLASHTILE_ISA
