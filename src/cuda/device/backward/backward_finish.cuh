// SPDX-License-Identifier: Apache-2.0
//
// Gradients of keys and values from accumulators to memory, through shared memory, so that whole
// rows are written.
#pragma once

#include "cuda/device/backward/backward_tile.cuh"
#include "cuda/device/epilogue/store_rows.cuh"

namespace flashtile::device {

template <class Work>
struct BackwardFinish {
  using Config = typename Work::Config;

  /// Where row `key` of the block lies.
  FLASHTILE_DEVICE static char* row_of(const RowsParam& rows, int key) {
    const typename Work::State& s = Work::state();
    return rows.data + s.sequence.line * rows.batch_stride + s.head_kv * rows.head_stride +
           (s.sequence.k_begin + s.sequence.leftpad + s.first_key + key) * rows.row_stride;
  }

  /// Writes a warp's share as 16-bit elements, or float32, into the CTA's tile.
  template <class Tile, int kTiles>
  FLASHTILE_DEVICE static void stage(uint32 tile, const float (&acc)[Work::kTilesN][kTiles][4],
                                     int first_row, int first_tile, float factor) {
    const int lane = lane_idx();
    FLASHTILE_UNROLL
    for (int m = 0; m < Work::kTilesN; ++m) {
      FLASHTILE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + m * 16 + half * 8 + lane / 4;
        FLASHTILE_UNROLL
        for (int n = 0; n < kTiles; ++n) {
          store_shared(tile + Tile::offset(row, first_tile + n) + static_cast<uint32>(lane % 4 * 4),
                       pack<Config::kElement>(acc[m][n][half * 2] * factor,
                                              acc[m][n][half * 2 + 1] * factor));
        }
      }
    }
  }

  /// Rows of the tile to memory; by all threads.
  template <class Tile, int kCols, int kCopyBytes>
  FLASHTILE_DEVICE static void store(uint32 tile, const RowsParam& rows, int num_cols) {
    constexpr int kElements = 16 / element_bytes(Config::kElement);
    constexpr int kChunks = kCols / kElements;
    const int num_keys = rows.data == nullptr ? 0 : Work::state().num_keys;
    FLASHTILE_NO_UNROLL
    for (int at = thread_idx(); at < num_keys * kChunks; at += Work::kThreads) {
      const int key = at / kChunks;
      const int chunk = at % kChunks;
      const Vector4 value = load_shared_vector(tile + Tile::offset(key, chunk));
      char* row = row_of(rows, key);
      if (kCopyBytes == 16 && (chunk + 1) * kElements <= num_cols) {
        store_vector(row + chunk * 16, value);
        continue;
      }
      const uint32 words[4] = {value.x, value.y, value.z, value.w};
      FLASHTILE_UNROLL
      for (int e = 0; e < kElements; ++e) {
        const int col = chunk * kElements + e;
        if (col >= num_cols) continue;
        *reinterpret_cast<uint16*>(row + col * rows.element_stride) =
            static_cast<uint16>(words[e / 2] >> (e % 2 * 16));
      }
    }
  }

  /// After the last step, behind a barrier.
  FLASHTILE_DEVICE static void run(Work& work) {
    using KeyTile = typename Work::KeyTile;
    using ValueTile = typename Work::ValueTile;
    const BackwardParams& backward = work.backward;
    stage<KeyTile>(work.key_tile(), work.dk, work.first_warp_key, work.warp_m * Work::kTilesD,
                   work.params.softmax_scale);
    stage<ValueTile>(work.value_tile(), work.dv, work.first_warp_key, work.warp_m * Work::kTilesV,
                     Config::kHasDropout ? work.params.dropout.gain : 1.0f);
    sync_cta();
    store<KeyTile, Config::kHeadDim, Config::kStoreBytes>(work.key_tile(), backward.dk,
                                                          work.params.head_dim);
    store<ValueTile, Config::kHeadDimV, Config::kStoreBytes>(work.value_tile(), backward.dv,
                                                             work.params.head_dim_v);
  }
};

}  // namespace flashtile::device
