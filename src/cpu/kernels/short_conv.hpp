// SPDX-License-Identifier: Apache-2.0
#pragma once

// Short causal convolution; lanes are channels. A chunk works on its own rows alone: what lies
// before them is read from the inputs, or at a sequence's beginning from its state, and what rows
// behind give back is worked out from those. So chunks do not depend on each other.
//
//   y_t = sum of weight_j x_{t-P+j} + bias, o = silu(y) or y, + x     for j = 0 .. P, P rows before
//   dy = do silu'(y), dweight_j = sum of dy_t x_{t-P+j}, dx_t = sum of weight_{P-j} dy_{t+j}
//
// Rows before the sequence's first are inputs as others are, with gradients.

#include "cpu/kernels/layer_parts.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Blocks have room for a chunk's rows with those before and behind.
inline int64_t short_conv_rows(int64_t max_rows, int64_t num_past) {
  return max_rows + 2 * num_past;
}

inline int64_t short_conv_scratch_bytes(int64_t max_rows, int64_t ld, int64_t num_past) {
  Scratch scratch{nullptr};
  for (int n = 0; n < 4; ++n) scratch.take<float>(short_conv_rows(max_rows, num_past) * ld);
  return scratch.used;
}

inline void copy_part_rows(const LayerPartChunk& c, const float* from, int64_t rows, float* to) {
  for (int64_t n = 0; n < rows * c.ld; n += c.ld) {
    for (int64_t j = 0; j < c.columns; j += kLanes) store(to + n + j, load(from + n + j));
  }
}

/// One chunk of a convolution: row t reads rows t .. t + P of `x`.
struct ShortConv {
  const LayerPartChunk& c;
  int64_t num_past;
  PartBlocks blocks;
  float* x;

  explicit ShortConv(const LayerPartChunk& chunk)
      : c(chunk),
        num_past(c.options->num_past),
        blocks(c, short_conv_rows(c.max_rows, num_past)),
        x(blocks.take()) {
    const int64_t from_state = num_past - c.rows_before;
    copy_part_rows(c, c.past + c.rows_before * c.ld, from_state, x);
    ChunkRows rows = c.x;
    rows.data -= c.rows_before * rows.row_stride;
    pack_chunk_rows(rows, c.rows_before + c.rows + c.rows_after, c.columns, 1.0f,
                    x + from_state * c.ld, c.ld);
  }

  FLASHTILE_INLINE Vf weight(int64_t row, int64_t j) const {
    return load(c.parameters + row * c.parameter_ld + j);
  }
  FLASHTILE_INLINE Vf sum(int64_t t, int64_t j) const {
    Vf y = weight(num_past + 1, j);
    for (int64_t p = 0; p <= num_past; ++p) y = fma(weight(p, j), load(x + (t + p) * c.ld + j), y);
    return y;
  }

  void store_out() {
    float* out = blocks.take();
    for (int64_t t = 0; t < c.rows; ++t) {
      for (int64_t j = 0; j < c.columns; j += kLanes) {
        Vf y = sum(t, j);
        if (c.options->has_silu) y = silu(y);
        if (c.options->has_residual) y = y + load(x + (t + num_past) * c.ld + j);
        store(out + t * c.ld + j, y);
      }
    }
    store_chunk_rows(out, c.ld, c.rows, c.columns, c.out);
    if (c.final_past != nullptr) copy_part_rows(c, x + c.rows * c.ld, num_past, c.final_past);
  }

  /// P rows of zeros, the gradients of the sums of rows up to rows_after behind the chunk, and
  /// zeros until P rows behind it. `dout` has room for those rows.
  void set_sum_gradients(float* dout, float* dy) const {
    const int64_t rows = c.rows + c.rows_after;
    pack_chunk_rows(c.dout, rows, c.columns, 1.0f, dout, c.ld);
    fill_row(dy, num_past * c.ld, 0);
    fill_row(dy + (num_past + rows) * c.ld, (num_past - c.rows_after) * c.ld, 0);
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t j = 0; j < c.columns; j += kLanes) {
        const Vf gradient = load(dout + t * c.ld + j);
        const Vf slope = c.options->has_silu ? silu_slope(sum(t, j)) : broadcast(1.0f);
        store(dy + (num_past + t) * c.ld + j, gradient * slope);
      }
    }
  }

  void add_parameter_gradients(const float* dy) const {
    for (int64_t j = 0; j < c.columns; j += kLanes) {
      for (int64_t p = 0; p <= num_past + 1; ++p) {
        Vf total = zero();
        for (int64_t t = 0; t < c.rows; ++t) {
          const Vf gradient = load(dy + (num_past + t) * c.ld + j);
          const bool is_bias = p > num_past;
          total = is_bias ? total + gradient : fma(gradient, load(x + (t + p) * c.ld + j), total);
        }
        add_part_sums(c, p, j, total);
      }
    }
  }

  /// Row t, counted from the chunk's first, may lie before it by up to P rows.
  FLASHTILE_INLINE Vf input_gradient(const float* dy, int64_t t, int64_t j) const {
    Vf dx = zero();
    for (int64_t p = 0; p <= num_past; ++p) {
      dx = fma(weight(num_past - p, j), load(dy + (num_past + t + p) * c.ld + j), dx);
    }
    // The last P rows of the sequence are its final state.
    const int64_t in_state = num_past + t - c.rows - c.rows_after;
    const bool is_final = c.dfinal != nullptr && in_state >= 0;
    return is_final ? dx + load(c.dfinal + in_state * c.ld + j) : dx;
  }

  void store_gradients() {
    float* dout = blocks.take();
    float* dy = blocks.take();
    float* dx = blocks.take();
    set_sum_gradients(dout, dy);
    add_parameter_gradients(dy);
    const int64_t first = c.is_first ? -num_past : 0;
    for (int64_t t = first; t < c.rows; ++t) {
      for (int64_t j = 0; j < c.columns; j += kLanes) {
        Vf total = input_gradient(dy, t, j);
        if (c.options->has_residual && t >= 0) total = total + load(dout + t * c.ld + j);
        store(dx + (t - first) * c.ld + j, total);
      }
    }
    store_chunk_rows(dx - first * c.ld, c.ld, c.rows, c.columns, c.dx);
    if (c.is_first) copy_part_rows(c, dx, num_past, c.dpast);
  }
};

inline void short_conv_fwd_chunk(const LayerPartChunk& c) { ShortConv(c).store_out(); }
inline void short_conv_bwd_chunk(const LayerPartChunk& c) { ShortConv(c).store_gradients(); }

inline constexpr LayerPartKernels kShortConvKernels = {short_conv_scratch_bytes,
                                                       short_conv_fwd_chunk, short_conv_bwd_chunk};

}  // namespace flashtile::cpu::FLASHTILE_ISA
