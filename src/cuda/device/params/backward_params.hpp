// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the backward kernels besides AttentionParams.
#pragma once

#include "cuda/device/params/attention_params.hpp"

namespace flashtile::device {

struct BackwardParams {
  RowsParam dout, dq, dk, dv;
  RowScalarsParam dlse;
  /// Of each query, in rows that padded_row() counts: (heads, padded_rows).
  float* lse = nullptr;    ///< in log2 units; +inf where no key is seen
  float* delta = nullptr;  ///< sum of out dout, less dlse
  /// Sums of dq, without the scale: tiles of 16 rows by 8 columns, (heads, padded_rows / 16,
  /// head_dim / 8, 128).
  float* dq_sums = nullptr;
  long long padded_rows = 0;
  HeadScalarsParam dsink, dalibi_slopes;
  /// Parts of these gradients, summed by attention_bwd_reduce in order: (heads, padded_rows / 16);
  /// (batch, heads, num_n_blocks, warps).
  float* sink_parts = nullptr;
  float* slope_parts = nullptr;
  long long num_parts = 0;  ///< of both, from sink_parts or slope_parts on
  int slope_parts_per_head = 0;
  int has_slopes_by_batch = 0;
  int num_n_blocks = 0;  ///< of the longest sequence
};

}  // namespace flashtile::device
