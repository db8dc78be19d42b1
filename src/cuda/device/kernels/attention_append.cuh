// SPDX-License-Identifier: Apache-2.0
//
// attention_append: stores new keys and values behind those in use, and turns new keys and queries
// by the rotary tables: (a, b) -> (a cos - b sin, b cos + a sin), rounded to the dtype. In a cache
// of 8 bits that is then divided by the scale and rounded again.
//
// k_new (batch, seqlen_new, heads_kv, head_dim) or packed; k, v dense, indirect or paged; queries
// go to a contiguous copy. A warp takes one row after the other, its lanes the elements: each
// element is read once and written once, and there are few of them beside the cache that is read
// next.
#pragma once

#include "cuda/device/copy/rows.cuh"
#include "cuda/device/mma/codes.cuh"
#include "cuda/device/ptx/thread.cuh"

namespace flashtile::device {

template <class Config>
struct Append {
  static constexpr int kThreads = 128;
  static constexpr int kBytes = element_bytes(Config::kElement);
  static constexpr bool kHasCodes = Config::kKeyElement != Config::kElement;

  const AttentionParams& params;
  const AppendParams& append;

  FLASHTILE_DEVICE static float load(const char* row, int64 stride, int index) {
    return load_element<Config::kElement>(row + index * stride);
  }

  /// Writes a number as an element of the queries, or with kInCache of the cache.
  template <bool kInCache>
  FLASHTILE_DEVICE static void store(char* address, float value, float scale) {
    if constexpr (kInCache && kHasCodes) {
      store_code<Config::kKeyElement>(address, rounded<Config::kElement>(value), scale);
    } else {
      store_element<Config::kElement>(address, value);
    }
  }

  /// The elements from `first` on, bit by bit, or as store() does it.
  template <bool kInCache>
  FLASHTILE_DEVICE static void copy(const char* from, int64 from_stride, char* to, int64 to_stride,
                                    int first, int dim, float scale) {
    for (int d = first + lane_idx(); d < dim; d += kWarpSize) {
      if constexpr (kInCache && kHasCodes) {
        store<true>(to + d * to_stride, load(from, from_stride, d), scale);
      } else if constexpr (kBytes == 4) {
        *reinterpret_cast<uint32*>(to + d * to_stride) =
            load_global(reinterpret_cast<const uint32*>(from + d * from_stride));
      } else {
        *reinterpret_cast<uint16*>(to + d * to_stride) =
            load_global(reinterpret_cast<const uint16*>(from + d * from_stride));
      }
    }
  }

  template <bool kInCache>
  FLASHTILE_DEVICE void turn(const char* from, int64 from_stride, char* to, int64 to_stride,
                             int64 position, float scale) const {
    const int64 row = clamp<int64>(position, 0, append.num_positions - 1);
    for (int n = lane_idx(); n < append.num_pairs; n += kWarpSize) {
      const int first = append.is_interleaved ? 2 * n : n;
      const int second = append.is_interleaved ? 2 * n + 1 : n + append.num_pairs;
      const float cos = load_element<Config::kTableElement>(
          append.cos + row * append.cos_row_stride + n * append.cos_stride);
      const float sin = load_element<Config::kTableElement>(
          append.sin + row * append.sin_row_stride + n * append.sin_stride);
      const float a = load(from, from_stride, first);
      const float b = load(from, from_stride, second);
      store<kInCache>(to + first * to_stride, a * cos - b * sin, scale);
      store<kInCache>(to + second * to_stride, b * cos + a * sin, scale);
    }
    copy<kInCache>(from, from_stride, to, to_stride, 2 * append.num_pairs, params.head_dim, scale);
  }

  /// The row of the tables by which position 0 of the call turns.
  FLASHTILE_DEVICE int64 first_position(int batch_idx) const {
    const bool has_own = append.rotary_seqlens.data != nullptr;
    return load_int(has_own ? append.rotary_seqlens : params.lengths.seqused_k, batch_idx);
  }

  FLASHTILE_DEVICE void store_key(int batch_idx, int index, int head_kv) const {
    Sequence from;
    from.batch_idx = batch_idx;
    if (index >= load_new_keys(params.lengths, batch_idx, from.q_begin)) return;
    const int64 slot = static_cast<int64>(load_int(params.lengths.seqused_k, batch_idx)) + index;
    if (slot < 0 || slot >= params.lengths.max_seqlen_k) return;
    Sequence to;  // slots count from 0, whatever the padding
    to.batch_idx = batch_idx;
    to.line = load_sequence(params, batch_idx).line;
    const KeyRows<Config::kPaged> keys(params.k, params.lengths, to, head_kv, 0);
    const KeyRows<Config::kPaged> values(params.v, params.lengths, to, head_kv, 0);
    char* key = const_cast<char*>(keys.row(static_cast<int>(slot)));
    char* value = const_cast<char*>(values.row(static_cast<int>(slot)));
    const auto scale = [&](const HeadScalarsParam& scales) {
      return kHasCodes
                 ? scale_of_key(scales, params.lengths, to, keys, head_kv, static_cast<int>(slot))
                 : 1.0f;
    };
    const char* new_key = query_row(append.k_new, from, index, head_kv);
    if (append.num_pairs > 0) {
      turn<true>(new_key, append.k_new.element_stride, key, params.k.element_stride,
                 first_position(batch_idx) + index, scale(params.k_scale));
    } else {
      copy<true>(new_key, append.k_new.element_stride, key, params.k.element_stride, 0,
                 params.head_dim, scale(params.k_scale));
    }
    copy<true>(query_row(append.v_new, from, index, head_kv), append.v_new.element_stride, value,
               params.v.element_stride, 0, params.head_dim_v, scale(params.v_scale));
  }

  FLASHTILE_DEVICE void turn_query(int batch_idx, int q_idx, int head) const {
    const Sequence sequence = load_sequence(params, batch_idx);
    if (q_idx >= sequence.seqlen_q) return;
    const int64 position = first_position(batch_idx) + (append.is_local ? q_idx : 0);
    turn<false>(query_row(params.q, sequence, q_idx, head), params.q.element_stride,
                query_row(append.turned_q, sequence, q_idx, head), append.turned_q.element_stride,
                position, 1.0f);
  }

  FLASHTILE_DEVICE void run() const {
    const LengthsParam& lengths = params.lengths;
    const int64 step = num_ctas() * (kThreads / kWarpSize);
    const int64 first = cta_idx() * (kThreads / kWarpSize) + warp_idx();
    const int64 num_keys =
        static_cast<int64>(lengths.batch_size) * lengths.seqlen_new * params.num_heads_kv;
    for (int64 at = first; at < num_keys; at += step) {
      const int64 row = at / params.num_heads_kv;
      store_key(static_cast<int>(row / lengths.seqlen_new),
                static_cast<int>(row % lengths.seqlen_new),
                static_cast<int>(at % params.num_heads_kv));
    }
    if (append.turned_q.data == nullptr) return;
    const int64 num_queries =
        static_cast<int64>(lengths.batch_size) * lengths.max_seqlen_q * params.num_heads;
    for (int64 at = first; at < num_queries; at += step) {
      const int64 row = at / params.num_heads;
      turn_query(static_cast<int>(row / lengths.max_seqlen_q),
                 static_cast<int>(row % lengths.max_seqlen_q),
                 static_cast<int>(at % params.num_heads));
    }
  }
};

}  // namespace flashtile::device

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::Append<Config>::kThreads, 4)
    attention_append(FLASHTILE_PARAMETER flashtile::device::AttentionParams params,
                     FLASHTILE_PARAMETER flashtile::device::AppendParams append) {
  const flashtile::device::Append<Config> kernel{params, append};
  kernel.run();
}
