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
  int num_n_blocks = 0;  ///< of the longest sequence
};

}  // namespace flashtile::device
