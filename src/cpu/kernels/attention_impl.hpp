// SPDX-License-Identifier: Apache-2.0
#pragma once

// The table of attention kernels of one instruction set; included by one file for each.

#include "cpu/kernels/attention_operand_kernels.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

inline void store_rows(const StoreRows& r) {
  // The parts are added in their order into the first one's copy, row by row.
  fetch_rows({r.rows, r.dtype, r.stride}, r.num_rows, r.dim);
  for (int64_t i = 0; i < r.num_rows; ++i) {
    if (r.rows[i] == nullptr) continue;
    alignas(64) float sum[1024 + 16];
    for (int64_t d = 0; d < r.dim; d += kLanes) {
      Vf x = load(r.parts[0] + i * r.ld + d);
      for (int64_t part = 1; part < r.num_parts; ++part) {
        x = x + load(r.parts[part] + i * r.ld + d);
      }
      store(sum + d, x);
    }
    unpack_rows(sum, padded(r.dim), 1, r.dim, {r.rows + i, r.dtype, r.stride});
  }
}

inline void row_dots(const void* const* dout, DType dout_dtype, int64_t dout_stride,
                     const void* const* out, DType out_dtype, int64_t out_stride, int64_t num_rows,
                     int64_t dim, float* delta) {
  alignas(64) float a[1024 + 16];
  alignas(64) float b[1024 + 16];
  constexpr int64_t kAhead = 64;
  for (int64_t i = 0; i < num_rows; ++i) {
    if (i % kAhead == 0) {
      const int64_t count = num_rows - i < kAhead ? num_rows - i : kAhead;
      fetch_rows({dout + i, dout_dtype, dout_stride}, count, dim);
      fetch_rows({out + i, out_dtype, out_stride}, count, dim);
    }
    if (dout[i] == nullptr) {
      delta[i] = 0;
      continue;
    }
    pack_rows({dout + i, dout_dtype, dout_stride}, 1, dim, a, padded(dim));
    pack_rows({out + i, out_dtype, out_stride}, 1, dim, b, padded(dim));
    delta[i] = row_dot(a, b, dim);
  }
}

constexpr AttentionKernels kAttentionKernels = {operand_kernels<FloatOperands>(), strip_bytes,
                                                store_rows, row_dots};

const AttentionKernels& attention_kernels() { return kAttentionKernels; }

}  // namespace flashtile::cpu::FLASHTILE_ISA
