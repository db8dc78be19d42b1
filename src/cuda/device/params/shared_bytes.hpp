// SPDX-License-Identifier: Apache-2.0
//
// Sizes in shared memory, for the kernels and for the plans that launch them.
#pragma once

namespace flashtile::device {

/// 16-bit elements in groups of 64 columns.
constexpr int swizzled_tile_bytes(int rows, int cols) { return (cols + 63) / 64 * rows * 128; }

constexpr int pitched_tile_bytes(int rows, int pitch) { return (rows * pitch + 127) / 128 * 128; }

/// Distance of float32 rows that are read as vectors: neighbours differ by 64 bytes in their banks,
/// for two rows of four chunks at once.
constexpr int vector_pitch(int cols) { return cols * 4 + (cols * 4 % 128 == 64 ? 0 : 64); }
/// Distance of float32 rows that are read by columns: rows 2t, t < 4, differ by 8 banks, for eight
/// columns of four rows at once.
constexpr int column_pitch(int cols) { return cols * 4 + 16; }

/// A tile of queries or keys. Two codes of 8 bits lie like one element of 16.
constexpr int row_tile_bytes(int element_bytes, int rows, int cols) {
  return element_bytes == 4   ? pitched_tile_bytes(rows, vector_pitch(cols))
         : element_bytes == 2 ? swizzled_tile_bytes(rows, cols)
                              : swizzled_tile_bytes(rows, cols / 2);
}

/// A tile of values.
constexpr int column_tile_bytes(int element_bytes, int rows, int cols) {
  return element_bytes == 4 ? pitched_tile_bytes(rows, column_pitch(cols))
                            : row_tile_bytes(element_bytes, rows, cols);
}

/// The shape of a forward kernel's CTA, as both sides need it.
struct ForwardShape {
  int element_bytes = 2;
  int head_dim = 0;    ///< padded to 16
  int head_dim_v = 0;  ///< padded to 16
  int block_m = 0;
  int block_n = 0;
  int warps_m = 0;
  int warps_n = 0;  ///< warps that share rows and divide keys, or also the columns of values
  int num_stages = 0;
  int chunk = 0;  ///< columns of queries and keys that pass through at a time; 0: whole rows
  /// Warps of the same rows exchange their weights, and each sums its own columns of values.
  bool shares_weights = false;
  /// Values are the first columns of keys, in the same tile. Those warps are two warpgroups that
  /// only sum values; one more makes weights, and one copies.
  bool values_in_keys = false;
  int key_element_bytes = 2;   ///< of keys and values
  bool copies_scales = false;  ///< of each key of a block, one for keys and one for values

  constexpr int num_threads() const { return 32 * warps_m * warps_n + (values_in_keys ? 256 : 0); }
  constexpr int key_bytes() const { return row_tile_bytes(key_element_bytes, block_n, head_dim); }
  constexpr int value_bytes() const {
    return column_tile_bytes(key_element_bytes, block_n, head_dim_v);
  }
  constexpr int scale_bytes() const { return copies_scales ? 2 * block_n * 4 : 0; }

  /// Columns of values that pass through at a time, where queries and keys do so in chunks: about
  /// as many bytes.
  constexpr int value_chunk() const { return head_dim_v < 2 * chunk ? head_dim_v : 2 * chunk; }
  constexpr int stage_bytes() const {
    if (values_in_keys) return key_bytes();
    if (chunk == 0) return key_bytes() + value_bytes() + scale_bytes();
    const int rows = row_tile_bytes(element_bytes, block_m, chunk) +
                     row_tile_bytes(key_element_bytes, block_n, chunk);
    const int values = column_tile_bytes(key_element_bytes, block_n, value_chunk());
    return (rows > values ? rows : values) + scale_bytes();
  }
  /// In a stage, those of keys; those of values follow.
  constexpr int scales_begin() const { return stage_bytes() - scale_bytes(); }
  /// Results on their way out: in the place of queries, or of the ring.
  constexpr int result_bytes() const {
    return element_bytes == 4 ? 0 : swizzled_tile_bytes(block_m, head_dim_v);
  }
  constexpr int query_bytes() const {
    if (chunk > 0) return 0;
    const int queries = row_tile_bytes(element_bytes, block_m, head_dim);
    return queries > result_bytes() ? queries : result_bytes();
  }
  constexpr int ring_begin() const { return query_bytes(); }
  /// The merging of warps that divide keys takes the place of the stages: two numbers of each warp
  /// and row, then its sums of values, rows of neighbours in other banks.
  constexpr int merge_pitch() const { return head_dim_v + 8; }
  constexpr int merge_bytes() const {
    return shares_weights || warps_n == 1 ? 0 : warps_n * block_m * (merge_pitch() + 2) * 4;
  }
  /// Splits of a tile may be CTAs of a cluster, which merge their results as their warps do.
  constexpr bool merges_in_cluster() const { return warps_n > 1 && !shares_weights; }
  constexpr int ring_bytes() const {
    int bytes = num_stages * stage_bytes();
    if (bytes < merge_bytes()) bytes = merge_bytes();
    if (chunk > 0 && bytes < result_bytes()) bytes = result_bytes();
    return (bytes + 127) / 128 * 128;
  }
  /// Weights that warps exchange, and behind them one number of each warp and row.
  constexpr int weights_begin() const { return ring_begin() + ring_bytes(); }
  constexpr int exchange_begin() const {
    return weights_begin() + (shares_weights ? swizzled_tile_bytes(block_m, block_n) : 0);
  }
  /// What the threads of a CTA know in common, and one flag for each key of a block.
  constexpr int state_begin() const {
    return exchange_begin() + (shares_weights ? warps_n * block_m * 4 : 0);
  }
  constexpr int flags_begin() const { return state_begin() + kStateBytes; }
  constexpr int barriers_begin() const { return flags_begin() + block_n * 4; }
  /// Three for each stage, two for weights, one for queries, the word of a tile that has failed.
  constexpr int barrier_bytes() const { return values_in_keys ? (3 * num_stages + 4) * 8 : 0; }
  constexpr int shared_bytes() const { return barriers_begin() + barrier_bytes(); }

  static constexpr int kStateBytes = 384;
};

}  // namespace flashtile::device
