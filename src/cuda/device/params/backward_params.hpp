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
  /// CTAs that have added all of theirs to these sums, (batch, kv heads); null: not counted.
  unsigned int* finished = nullptr;
  /// An int for each of kRowPadding rows, (heads, padded_rows / 16): whether what is not finite may
  /// lie in their queries and gradients.
  int* odd_rows = nullptr;
  RowsParam dout_copy;  ///< in q's dtype, where dout is float32 and q is not
  HeadScalarsParam dsink, dalibi_slopes;
  /// Parts of these gradients, summed by attention_bwd_reduce in order: (heads, padded_rows / 16);
  /// (batch, heads, blocks of queries, warps).
  float* sink_parts = nullptr;
  float* slope_parts = nullptr;
  unsigned int* cleared = nullptr;  ///< what attention_bwd_clear sets to 0: all sums and parts
  long long num_cleared = 0;        ///< words
  int slope_parts_per_head = 0;
  int has_slopes_by_batch = 0;
  int num_n_blocks = 0;                        ///< of the longest sequence
  int num_key_parts = 1, num_query_parts = 1;  ///< of the columns of dk and dv, and of dq
  ScoresParam dbias;
  int dbias_batches = 0, dbias_heads = 0, dbias_rows = 0, dbias_cols = 0;
};

}  // namespace flashtile::device
