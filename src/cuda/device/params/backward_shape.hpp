// SPDX-License-Identifier: Apache-2.0
//
// The shape of a backward kernel's CTA, for the kernel and for the plan that launches it.
#pragma once

#include "cuda/device/params/shared_bytes.hpp"

namespace flashtile::device {

/// Rows of lse, delta and of the sums of dq begin at multiples of this for each sequence.
constexpr int kRowPadding = 16;

/// A CTA owns block_n keys and goes over query blocks of block_m. For products of keys and queries
/// its warps are a grid of warps_n (keys) by warps_m (queries); the columns of dk and dv take the
/// place of queries in theirs. For dq they are dq_warps_m (queries) by the rest (columns).
struct BackwardShape {
  int element_bytes = 2;
  int head_dim = 0;    ///< padded: columns of a warp are a multiple of 16
  int head_dim_v = 0;  ///< padded
  int block_m = 0;
  int block_n = 0;
  int warps_n = 0;
  int warps_m = 0;
  int dq_warps_m = 0;
  int dq_passes = 1;   ///< parts of the columns of dq, one after the other
  int slice = 0;       ///< queries that a warp takes from products to weights at once
  int num_stages = 0;  ///< of queries and their gradients

  constexpr int num_warps() const { return warps_n * warps_m; }
  constexpr int num_threads() const { return 32 * num_warps(); }
  constexpr int dq_warps_d() const { return num_warps() / dq_warps_m; }
  /// Columns of dq that a warp works out at once.
  constexpr int dq_columns() const { return head_dim / (dq_warps_d() * dq_passes); }

  constexpr int key_bytes() const { return row_tile_bytes(element_bytes, block_n, head_dim); }
  constexpr int value_bytes() const { return row_tile_bytes(element_bytes, block_n, head_dim_v); }
  constexpr int query_bytes() const { return row_tile_bytes(element_bytes, block_m, head_dim); }
  constexpr int dout_bytes() const { return row_tile_bytes(element_bytes, block_m, head_dim_v); }
  /// lse, delta, the range of keys that each query sees; behind them whether rows are odd.
  constexpr int odd_rows_begin() const { return 4 * block_m * 4; }
  constexpr int vector_bytes() const {
    return (odd_rows_begin() + block_m / kRowPadding * 4 + 127) / 128 * 128;
  }
  constexpr int stage_bytes() const { return query_bytes() + dout_bytes() + vector_bytes(); }
  /// Weights, or their gradients: a row for each key.
  constexpr int weight_bytes() const { return row_tile_bytes(element_bytes, block_n, block_m); }
  /// Weights stay in registers where one warp has all columns of its keys.
  constexpr bool keeps_weights() const { return warps_m == 1; }

  constexpr int values_begin() const { return key_bytes(); }
  constexpr int stages_begin() const { return values_begin() + value_bytes(); }
  constexpr int dscores_begin() const { return stages_begin() + num_stages * stage_bytes(); }
  constexpr int weights_begin() const { return dscores_begin() + weight_bytes(); }
  constexpr int state_begin() const {
    return weights_begin() + (keeps_weights() ? 0 : weight_bytes());
  }
  constexpr int shared_bytes() const { return state_begin() + kStateBytes; }

  static constexpr int kStateBytes = 256;
};

}  // namespace flashtile::device
