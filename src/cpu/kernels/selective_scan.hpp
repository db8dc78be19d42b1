// SPDX-License-Identifier: Apache-2.0
#pragma once

// Mamba's selective scan; lanes are channels, and with d the step size and n over a channel's state
//
//   S_n = exp(d A_n) S_n + d u B_n      y = sum of S_n C_n + D u      o = y silu(z)
//
// Backward a chunk's states are worked out once more from the one before it, and kept with their
// decays:
//
//   dy = do silu(z), dz = do y silu'(z), dC = S dy, X += C dy, dD += dy u
//   du = D dy + d (B.X), dB = d u X, dA += d exp(d A) S' X with S' the state before the row
//   dd = u (B.X) + sum of X_n A_n exp(d A_n) S'_n, then X is multiplied by exp(d A)
//
// dB and dC are sums over channels: across lanes, then over blocks.

#include "cpu/kernels/scan.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Rows of ScanChunk::parameters.
inline constexpr int64_t kSkipRow = 0, kStepBiasRow = 1, kDecayRow = 2;

/// The inputs of a chunk as floats.
struct SelectiveInputs {
  float* u;
  float* step;   ///< d
  float* slope;  ///< of d by dt
  float* z;
  float* B;  ///< rows of ld_state
  float* C;
  int64_t ld_state;
};

inline SelectiveInputs selective_inputs(ScanBlocks& blocks, int64_t head_dim) {
  SelectiveInputs in{};
  in.u = blocks.take();
  in.step = blocks.take();
  in.slope = blocks.take();
  in.z = blocks.take();
  in.ld_state = padded(head_dim);
  in.B = blocks.scratch.take<float>(blocks.max_rows * in.ld_state);
  in.C = blocks.scratch.take<float>(blocks.max_rows * in.ld_state);
  return in;
}

inline void pack_selective(const ScanChunk& c, const SelectiveInputs& in) {
  pack_scan_rows(c, c.v, in.u);
  pack_scan_rows(c, c.dt, in.step);
  pack_scan_rows(c, c.z, in.z);
  pack_chunk_rows(c.B, c.rows, c.head_dim, 1.0f, in.B, in.ld_state);
  pack_chunk_rows(c.C, c.rows, c.head_dim, 1.0f, in.C, in.ld_state);
  for (int64_t t = 0; t < c.rows; ++t) {
    for (int64_t j = 0; j < c.channels; j += kLanes) {
      const int64_t n = t * kScanChannels + j;
      const Vf x = load(in.step + n) + load(c.parameters + kStepBiasRow * kScanChannels + j);
      store(in.step + n, c.has_softplus ? softplus(x) : x);
      store(in.slope + n, c.has_softplus ? sigmoid(x) : broadcast(1.0f));
    }
  }
}

inline int64_t mamba1_fwd_scratch_bytes(int64_t max_rows, int64_t head_dim) {
  ScanBlocks blocks(nullptr, max_rows);
  selective_inputs(blocks, head_dim);
  blocks.take();
  return blocks.scratch.used;
}

/// All channels of one row: y without the skip, and the state goes on.
inline void selective_row(const ScanChunk& c, const SelectiveInputs& in, int64_t t, float* y) {
  const float* B = in.B + t * in.ld_state;
  const float* C = in.C + t * in.ld_state;
  for (int64_t j = 0; j < c.channels; j += kLanes) {
    const Vf step = load(in.step + t * kScanChannels + j);
    const Vf added = step * load(in.u + t * kScanChannels + j);
    Vf sum = zero();
    for (int64_t n = 0; n < c.head_dim; ++n) {
      float* state = c.state + n * kScanChannels + j;
      const Vf decay = exp(step * load(c.parameters + (kDecayRow + n) * kScanChannels + j));
      const Vf s = fma(added, broadcast(B[n]), reset_product(decay, load(state)));
      sum = fma(broadcast(C[n]), s, sum);
      store(state, s);
    }
    store(y + j, sum);
  }
}

inline void mamba1_fwd_chunk(const ScanChunk& c) {
  ScanBlocks blocks(c.scratch, c.max_rows);
  const SelectiveInputs in = selective_inputs(blocks, c.head_dim);
  float* out = blocks.take();
  pack_selective(c, in);
  for (int64_t t = 0; t < c.rows; ++t) {
    float* row = out + t * kScanChannels;
    selective_row(c, in, t, row);
    for (int64_t j = 0; j < c.channels && c.out.data != nullptr; j += kLanes) {
      const Vf u = load(in.u + t * kScanChannels + j);
      Vf y = fma(load(c.parameters + kSkipRow * kScanChannels + j), u, load(row + j));
      if (c.z.data != nullptr) {
        const Vf z = load(in.z + t * kScanChannels + j);
        y = y * silu(z);
      }
      store(row + j, y);
    }
  }
  store_scan_rows(c, out, c.out);
}

/// What a backward of a chunk needs besides its inputs.
struct SelectiveBwdScratch {
  SelectiveInputs in;
  float* dout;
  float* ddt;
  float* du;
  float* dz;
  float* states;  ///< head_dim rows of channels for each row, before it, and behind the last one
  float* decays;
  float* dparameters;  ///< of this chunk
  float* dB;           ///< head_dim vectors, of one row
  float* dC;
  int64_t bytes;

  SelectiveBwdScratch(char* memory, int64_t max_rows, int64_t head_dim) {
    ScanBlocks blocks(memory, max_rows);
    in = selective_inputs(blocks, head_dim);
    dout = blocks.take();
    ddt = blocks.take();
    du = blocks.take();
    dz = blocks.take();
    states = blocks.scratch.take<float>((max_rows + 1) * head_dim * kScanChannels);
    decays = blocks.take(head_dim);
    dparameters = blocks.scratch.take<float>((kDecayRow + head_dim) * kScanChannels);
    dB = blocks.scratch.take<float>(head_dim * kLanes);
    dC = blocks.scratch.take<float>(head_dim * kLanes);
    bytes = blocks.scratch.used;
  }
};

inline int64_t mamba1_bwd_scratch_bytes(int64_t max_rows, int64_t head_dim) {
  return SelectiveBwdScratch(nullptr, max_rows, head_dim).bytes;
}

/// The states of a chunk for kLanes channels from j on.
inline void selective_states(const ScanChunk& c, const SelectiveBwdScratch& scratch, int64_t j) {
  const SelectiveInputs& in = scratch.in;
  const int64_t size = c.head_dim * kScanChannels;
  for (int64_t n = 0; n < size; n += kScanChannels) {
    store(scratch.states + n + j, load(c.state + n + j));
  }
  for (int64_t t = 0; t < c.rows; ++t) {
    const Vf step = load(in.step + t * kScanChannels + j);
    const Vf added = step * load(in.u + t * kScanChannels + j);
    for (int64_t n = 0; n < c.head_dim; ++n) {
      const int64_t at = t * size + n * kScanChannels + j;
      const Vf decay = exp(step * load(c.parameters + (kDecayRow + n) * kScanChannels + j));
      const Vf kept = reset_product(decay, load(scratch.states + at));
      store(scratch.decays + at, decay);
      store(scratch.states + at + size, fma(added, broadcast(in.B[t * in.ld_state + n]), kept));
    }
  }
}

FLASHTILE_INLINE void add_to(float* sum, Vf x) { store(sum, load(sum) + x); }

/// One row back for kLanes channels from j on; vectors of dB and dC are added to.
inline void selective_row_gradient(const ScanChunk& c, const SelectiveBwdScratch& scratch,
                                   int64_t t, int64_t j) {
  const SelectiveInputs& in = scratch.in;
  const float* B = in.B + t * in.ld_state;
  const float* C = in.C + t * in.ld_state;
  const int64_t at = t * kScanChannels + j;
  const int64_t size = c.head_dim * kScanChannels;
  const Vf u = load(in.u + at);
  const Vf step = load(in.step + at);
  const Vf added = step * u;
  const Vf skip = load(c.parameters + kSkipRow * kScanChannels + j);
  const Vf dout = load(scratch.dout + at);
  Vf dy = dout;
  if (c.z.data != nullptr) {
    const Vf z = load(in.z + at);
    dy = dout * silu(z);
    Vf y = skip * u;
    for (int64_t n = 0; n < c.head_dim; ++n) {
      const Vf s = load(scratch.states + (t + 1) * size + n * kScanChannels + j);
      y = fma(broadcast(C[n]), s, y);
    }
    store(scratch.dz + at, dout * y * silu_slope(z));
  }
  Vf entered = zero();  // B.X
  Vf dstep = zero();
  for (int64_t n = 0; n < c.head_dim; ++n) {
    const int64_t row = n * kScanChannels + j;
    const Vf before = load(scratch.states + t * size + row);
    const Vf behind = load(scratch.states + (t + 1) * size + row);
    const Vf ds = fma(broadcast(C[n]), dy, load(c.dstate + row));
    add_to(scratch.dC + n * kLanes, behind * dy);
    add_to(scratch.dB + n * kLanes, added * ds);
    entered = fma(broadcast(B[n]), ds, entered);
    const Vf passed = reset_product(load(scratch.decays + t * size + row), ds);
    const Vf dlog_decay = reset_product(passed, before);
    dstep = fma(load(c.parameters + (kDecayRow + n) * kScanChannels + j), dlog_decay, dstep);
    add_to(scratch.dparameters + kDecayRow * kScanChannels + row, step * dlog_decay);
    store(c.dstate + row, passed);
  }
  store(scratch.du + at, fma(skip, dy, step * entered));
  store(scratch.ddt + at, fma(u, entered, dstep) * load(in.slope + at));
  add_to(scratch.dparameters + kSkipRow * kScanChannels + j, dy * u);
  add_to(scratch.dparameters + kStepBiasRow * kScanChannels + j, load(scratch.ddt + at));
}

inline void mamba1_bwd_chunk(const ScanChunk& c) {
  const SelectiveBwdScratch scratch(c.scratch, c.max_rows, c.head_dim);
  pack_selective(c, scratch.in);
  pack_scan_rows(c, c.dout, scratch.dout);
  for (int64_t j = 0; j < c.channels; j += kLanes) selective_states(c, scratch, j);
  const int64_t num_parameters = (kDecayRow + c.head_dim) * kScanChannels;
  fill_row(scratch.dparameters, num_parameters, 0);
  for (int64_t t = c.rows - 1; t >= 0; --t) {
    fill_row(scratch.dB, c.head_dim * kLanes, 0);
    fill_row(scratch.dC, c.head_dim * kLanes, 0);
    for (int64_t j = 0; j < c.channels; j += kLanes) selective_row_gradient(c, scratch, t, j);
    float* dB = c.dB + t * c.head_dim;
    float* dC = c.dC + t * c.head_dim;
    for (int64_t n = 0; n < c.head_dim; ++n) {
      const float entered = reduce_add(load(scratch.dB + n * kLanes));
      const float read = reduce_add(load(scratch.dC + n * kLanes));
      dB[n] = c.is_first ? entered : dB[n] + entered;
      dC[n] = c.is_first ? read : dC[n] + read;
    }
  }
  for (int64_t n = 0; n < num_parameters; n += kLanes) {
    add_to_doubles(load(scratch.dparameters + n), c.dparameters + n);
  }
  store_scan_rows(c, scratch.du, c.dv);
  store_scan_rows(c, scratch.ddt, c.ddt);
  store_scan_rows(c, scratch.dz, c.dz);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
