// SPDX-License-Identifier: Apache-2.0
//
// Gradients of keys and values from accumulators to memory, through shared memory, so that whole
// rows are written.
#pragma once

#include "cuda/device/backward/backward_tile.cuh"
#include "cuda/device/backward/dq_rows.cuh"
#include "cuda/device/epilogue/store_rows.cuh"
#include "cuda/device/ptx/exchange.cuh"

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

  /// Counts the CTA among those that have added to the sums of their kv head; by one thread, behind
  /// fences of all and a barrier. How many there were before.
  FLASHTILE_DEVICE static uint32 count_cta(const AttentionParams& params,
                                           const BackwardParams& backward) {
    const typename Work::State& s = Work::state();
    return atomic_increment(backward.finished + s.sequence.batch_idx * params.num_heads_kv +
                            s.head_kv);
  }

  /// dq of all heads of a kv head, by the last CTA that has added to their sums: these lie in the
  /// L2 cache then, and no kernel has to read them from memory. `num_before`: thread 0 has it.
  FLASHTILE_DEVICE static void finish_dq(const AttentionParams& params,
                                         const BackwardParams& backward, uint32 num_before) {
    const typename Work::State& s = Work::state();
    const uint32 flag = shared_address(shared_memory());
    sync_cta();
    if (thread_idx() == 0) store_shared(flag, num_before);
    sync_cta();
    if (load_shared_word(flag) + 1 != static_cast<uint32>(backward.num_n_blocks)) return;
    fence_device();
    const DqRows<Config> rows{params, backward};
    const int num_blocks = (s.sequence.seqlen_q + kRowPadding - 1) / kRowPadding;
    FLASHTILE_NO_UNROLL
    for (int head = 0; head < params.group_size; ++head) {
      rows.template convert<Work::kThreads / kWarpSize, 4>(
          s.sequence, s.head_kv * params.group_size + head, 0, num_blocks, warp_idx());
    }
  }

  /// Of a CTA without keys.
  FLASHTILE_DEVICE static void run_without_keys(const AttentionParams& params,
                                                const BackwardParams& backward) {
    if constexpr (Config::kFinishesDq) {
      finish_dq(params, backward, thread_idx() == 0 ? count_cta(params, backward) : 0);
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
    if constexpr (Config::kFinishesDq) fence_device();
    sync_cta();
    // The answer comes while rows are written.
    uint32 num_before = 0;
    if (Config::kFinishesDq && thread_idx() == 0) num_before = count_cta(work.params, backward);
    store<KeyTile, Config::kHeadDim, Config::kStoreBytes>(work.key_tile(), backward.dk,
                                                          work.params.head_dim);
    store<ValueTile, Config::kHeadDimV, Config::kStoreBytes>(work.value_tile(), backward.dv,
                                                             work.params.head_dim_v);
    if constexpr (Config::kFinishesDq) finish_dq(work.params, backward, num_before);
  }
};

}  // namespace flashtile::device
