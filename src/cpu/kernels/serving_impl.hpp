// SPDX-License-Identifier: Apache-2.0
#pragma once

// The table of serving kernels of one instruction set; included by one file for each.

#include "cpu/kernels/attention_decode.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

inline void merge_row(const MergeRowRequest& r) {
  alignas(64) float sum[1024 + 16];
  alignas(64) float part[1024 + 16];
  bool is_first = true;
  for (int64_t p = 0; p < r.num_parts; ++p) {
    if (r.parts[p] == nullptr) continue;
    pack_rows({r.parts + p, r.dtype, r.stride}, 1, r.dim, part, padded(r.dim));
    const Vf weight = broadcast(r.weights[p]);
    for (int64_t d = 0; d < r.dim; d += kLanes) {
      const Vf term = weight * load(part + d);
      store(sum + d, is_first ? term : load(sum + d) + term);
    }
    is_first = false;
  }
  if (is_first) fill_row(sum, r.dim, 0);
  unpack_rows(sum, padded(r.dim), 1, r.dim, {&r.out, r.out_dtype, r.out_stride});
}

constexpr ServingKernels kServingKernels = {
    {decode_ld, decode_scratch_bytes, decode_queries, decode_tile, decode_finish}, merge_row};

const ServingKernels& serving_kernels() { return kServingKernels; }

}  // namespace flashtile::cpu::FLASHTILE_ISA
