// SPDX-License-Identifier: Apache-2.0
#pragma once

// Attention of a few rows over keys that are read once, where they lie: no packing.
//
//   S = softmax_scale Q K^T   (rows, n)   the bits that packed blocks give: a backward that works
//                                         S out again from lse needs the same ones
//   S = score rules, masks
//   P = exp(S - m), with the running maximum m
//   O = diag(f) O + P V       (rows, dv)
//
// Rows are the queries of all heads of a group, up to four at a time, so that each element of K and
// V is loaded once for four. Keys go by in groups of 16, and for a group all kv heads of the task
// are worked on, so that memory is read in the order in which heads lie side by side. Meanwhile the
// next tile is fetched into L2, a line for each line that is read, keys and values in turns: two
// streams keep more of the memory busy than one where pages lie apart. As shares of what a loop
// that only reads reaches (bf16, 16 heads of 64, Zen 5, contiguous / pages of 16 keys): this 0.88 /
// 0.80, one stream 16 keys ahead 0.82 / 0.63, by head through a tile 0.4, fetching in bursts of 2
// KiB or into L1 0.65. That loop over the pages itself reaches 0.80 with one stream, 0.88 with two.
//
// Scratch: S (rows of all heads, 64) and a row of zeros.

#if defined(__AVX512BF16__)
#include "cpu/kernels/attention_decode_bf16.hpp"
#endif
#include "cpu/kernels/attention_scores.hpp"
#include "cpu/kernels/serving_kernels.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

inline constexpr int64_t kScoreLd = kDecodeKeys;
inline constexpr float kDecodeLn2 = 0.69314718055994531f;

inline int64_t decode_scratch_bytes(int64_t rows, int64_t head_dim_v) {
  // S, a row of V that nobody sees, and a flag for each head.
  return (rows * kScoreLd + padded(head_dim_v)) * 4 + rows + 192;
}

/// Keys that are worked on together.
inline constexpr int64_t kKeyGroup = 16;

FLASHTILE_INLINE void fetch_line(const char* row, int64_t offset) {
  __builtin_prefetch(row + offset, 0, 2);
}

template <int kRows, int kColumns>
using Sums = Vf[static_cast<size_t>(kRows)][static_cast<size_t>(kColumns)];

template <class T>
FLASHTILE_INLINE bool begins_line(int64_t d) {
  return d % (64 / static_cast<int64_t>(sizeof(T))) == 0;
}

/// s[r][u] = alpha q_r . k_u for kRows rows and the keys of a group; `offset` bytes lead to the
/// head's row. Keys are turned into lanes, so that a score is one chain over d, as in gemm.hpp.
template <int kRows, class T>
FLASHTILE_INLINE void score_keys(const DecodeTile& tile, const char* const* k_rows, const float* q,
                                 int64_t offset, float alpha, float* s, const char* const* ahead) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
  for (int64_t first = 0; first < kKeyGroup; first += kLanes) {
    Vf sum[static_cast<size_t>(kRows)];
    FLASHTILE_UNROLL
    for (int r = 0; r < kRows; ++r) sum[r] = zero();
    for (int64_t d = 0; d < tile.head_dim; d += kLanes) {
      const int64_t left = tile.head_dim - d;
      Vu x[static_cast<size_t>(kLanes)];
      FLASHTILE_UNROLL
      for (int u = 0; u < kLanes; ++u) {
        const T* k = reinterpret_cast<const T*>(k_rows[first + u] + offset) + d;
        if (ahead != nullptr && begins_line<T>(d)) fetch_line(ahead[first + u], d * kBytes);
        x[u] = as_vu(left >= kLanes ? load(k) : load_partial(k, left));
      }
      transpose(x);
      FLASHTILE_UNROLL
      for (int c = 0; c < kLanes; ++c) {
        FLASHTILE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          sum[r] = fma(broadcast(q[r * tile.q_ld + d + c]), as_vf(x[c]), sum[r]);
        }
      }
    }
    FLASHTILE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      store(s + r * kScoreLd + first, sum[r] * broadcast(alpha));
    }
  }
}

/// O += P V for kKeys keys, kRows rows and kVecs vectors of columns from d on, of which the last
/// one may be `last` columns wide.
template <int kRows, int kKeys, int kVecs, bool is_whole, class T>
FLASHTILE_INLINE void add_columns(const char* const* v_rows, int64_t offset, const float* p,
                                  float* out, int64_t out_ld, int64_t d, int64_t last,
                                  const char* const* ahead) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
  Sums<kRows, kVecs> sum;
  FLASHTILE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    FLASHTILE_UNROLL
    for (int c = 0; c < kVecs; ++c) sum[r][c] = load(out + r * out_ld + d + c * kLanes);
  }
  FLASHTILE_UNROLL
  for (int u = 0; u < kKeys; ++u) {
    const T* v = reinterpret_cast<const T*>(v_rows[u] + offset) + d;
    Vf x[static_cast<size_t>(kVecs)];
    FLASHTILE_UNROLL
    for (int c = 0; c < kVecs; ++c) {
      if (ahead != nullptr && begins_line<T>(d + c * kLanes)) {
        fetch_line(ahead[u], (d + c * kLanes) * kBytes);
      }
      x[c] = is_whole || c + 1 < kVecs ? load(v + c * kLanes) : load_partial(v + c * kLanes, last);
    }
    FLASHTILE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Vf weight = broadcast(p[r * kScoreLd + u]);
      FLASHTILE_UNROLL
      for (int c = 0; c < kVecs; ++c) sum[r][c] = fma(weight, x[c], sum[r][c]);
    }
  }
  FLASHTILE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    FLASHTILE_UNROLL
    for (int c = 0; c < kVecs; ++c) store(out + r * out_ld + d + c * kLanes, sum[r][c]);
  }
}

/// Keys of any dtype, widened to float32 as they are read.
template <class T>
struct WidenedKeys {
  /// Scores of a group of keys for kRows rows from `row` on.
  template <int kRows>
  static FLASHTILE_INLINE void score(const DecodeTile& tile, const char* const* k_rows,
                                     const DecodeHead& head, int64_t row, int64_t offset,
                                     float alpha, float* s, const char* const* ahead) {
    score_keys<kRows, T>(tile, k_rows, head.q + row * tile.q_ld, offset, alpha, s, ahead);
  }

  /// P in the form that `add` reads, in place.
  static FLASHTILE_INLINE void make_weights(float*, int64_t) {}

  /// O += P V of a group of keys from j on; p and out are of the first of kRows rows.
  template <int kRows>
  static FLASHTILE_INLINE void add(const DecodeTile& tile, const char* const* v_rows,
                                   int64_t offset, const float* p, int64_t j, float* out,
                                   const char* const* ahead) {
    const int64_t dim = tile.head_dim_v;
    for (int64_t u = 0; u < kKeyGroup; u += 4) {
      const float* weights = p + j + u;
      const char* const* group_ahead = ahead == nullptr ? nullptr : ahead + u;
      int64_t d = 0;
      for (; d + 4 * kLanes <= dim; d += 4 * kLanes) {
        add_columns<kRows, 4, 4, true, T>(v_rows + u, offset, weights, out, tile.out_ld, d, kLanes,
                                          group_ahead);
      }
      for (; d + kLanes <= dim; d += kLanes) {
        add_columns<kRows, 4, 1, true, T>(v_rows + u, offset, weights, out, tile.out_ld, d, kLanes,
                                          group_ahead);
      }
      if (d < dim) {
        add_columns<kRows, 4, 1, false, T>(v_rows + u, offset, weights, out, tile.out_ld, d,
                                           dim - d, group_ahead);
      }
    }
  }
};

#if defined(__AVX512BF16__)
/// Keys of bf16 or e4m3 whose rows are whole registers. Queries are bf16, in rows of 4 q_ld bytes.
template <class T>
struct PairedKeys {
  template <int kRows>
  static FLASHTILE_INLINE void score(const DecodeTile& tile, const char* const* k_rows,
                                     const DecodeHead& head, int64_t row, int64_t offset,
                                     float alpha, float* s, const char* const* ahead) {
    const char* q = reinterpret_cast<const char*>(head.q + row * tile.q_ld);
    score_pairs<kRows, T>(k_rows, offset, q, 4 * tile.q_ld, tile.head_dim, alpha, s, kScoreLd,
                          ahead);
  }

  static FLASHTILE_INLINE void make_weights(float* p, int64_t n) {
    auto* pairs = reinterpret_cast<Bf16*>(p);
    for (int64_t j = 0; j < n; j += kLanes) store_flush(pairs + j, load(p + j));
  }

  template <int kRows>
  static FLASHTILE_INLINE void add(const DecodeTile& tile, const char* const* v_rows,
                                   int64_t offset, const float* p, int64_t j, float* out,
                                   const char* const* ahead) {
    const uint32_t* pairs = reinterpret_cast<const uint32_t*>(p) + j / 2;
    int64_t d = 0;
    for (; d + 2 * kPairColumns <= tile.head_dim_v; d += 2 * kPairColumns) {
      add_pairs<kRows, 2, T>(v_rows, offset, d, pairs, kScoreLd, out + d, tile.out_ld, ahead);
    }
    if (d < tile.head_dim_v) {
      add_pairs<kRows, 1, T>(v_rows, offset, d, pairs, kScoreLd, out + d, tile.out_ld, ahead);
    }
  }
};
#endif

/// True where PairedKeys serve for queries and keys of these dtypes.
FLASHTILE_INLINE bool takes_pairs(DType q_dtype, DType k_dtype, int64_t head_dim,
                                  int64_t head_dim_v) {
#if defined(__AVX512BF16__)
  return q_dtype == DType::kBF16 && (k_dtype == DType::kBF16 || k_dtype == DType::kE4M3) &&
         head_dim % kPairColumns == 0 && head_dim_v % kPairColumns == 0;
#else
  (void)q_dtype, (void)k_dtype, (void)head_dim, (void)head_dim_v;
  return false;
#endif
}

/// Calls body(count, first row) for all rows, four at a time.
template <int n>
struct RowCount {
  static constexpr int kRows = n;
};
template <class Body>
FLASHTILE_INLINE void for_each_row_group(int64_t num_rows, const Body& body) {
  int64_t row = 0;
  for (; row + 4 <= num_rows; row += 4) body(RowCount<4>(), row);
  for (; row + 2 <= num_rows; row += 2) body(RowCount<2>(), row);
  if (row < num_rows) body(RowCount<1>(), row);
}

/// Rows of a tile for whole groups of keys: the last one stands for those that are not there. They
/// get the weight 0.
struct HeadRows {
  const char* rows[static_cast<size_t>(kDecodeKeys)];  ///< of the first head
  int64_t head_stride;

  HeadRows(const char* const* given, int64_t count, int64_t stride) : head_stride(stride) {
    for (int64_t j = 0; j < count; ++j) rows[j] = given[j];
    for (int64_t j = count; j % kKeyGroup != 0; ++j) rows[j] = given[count - 1];
  }
};

/// Rows of the next tile to fetch in one step, that of a head and a group of keys, of the
/// 2 * groups * heads of a tile: its share of the keys and of the values, in turns, each in the
/// order of memory (all heads of a key, then the next key). Null where nothing follows.
FLASHTILE_INLINE const char* const* find_ahead(const DecodeTile& tile, int64_t step,
                                               const char** ahead) {
  if (tile.num_next == 0) return nullptr;
  int64_t key = step * (kKeyGroup / 2) / tile.num_heads;
  int64_t head = step * (kKeyGroup / 2) % tile.num_heads;
  for (int64_t u = 0; u < kKeyGroup; ++key, head = 0) {
    const int64_t row = key < tile.num_next ? key : tile.num_next - 1;
    const char* k = tile.next_k_rows[row] + head * tile.k_head_stride;
    const char* v = tile.next_v_rows[row] + head * tile.v_head_stride;
    for (; head < tile.num_heads && u < kKeyGroup; ++head, u += 2) {
      ahead[u] = k;
      ahead[u + 1] = v;
      k += tile.k_head_stride;
      v += tile.v_head_stride;
    }
  }
  return ahead;
}

/// Score options and masks. Where a head sees nothing of the tile its scores are -inf.
inline void decode_rules(const DecodeTile& tile, const DecodeHead& head, float* s) {
  BlockPrograms programs{};
  for (int64_t g = 0; g < tile.group_size; ++g) {
    float* rows = s + g * tile.seqlen_q * kScoreLd;
    if (head.cover[g] == TileCover::kNone) {
      for (int64_t i = 0; i < tile.seqlen_q; ++i) {
        fill_row(rows + i * kScoreLd, tile.num_keys, -__builtin_inff());
      }
      continue;
    }
    const TileSpan span{0, tile.seqlen_q, tile.k_begin, tile.num_keys};
    const bool is_full = head.cover[g] == TileCover::kFull;
    const ScoreRules& rules = *head.rules[g];
    apply_scores(rules, programs, span, is_full, rows, kScoreLd);
    for (int64_t i = 0; rules.has_alibi && i < tile.seqlen_q; ++i) {
      subtract_alibi_row(rules, i, tile.k_begin, tile.num_keys, rows + i * kScoreLd);
    }
    apply_masks(rules, programs, span, is_full, rows, kScoreLd);
  }
}

/// P in place of S, row_max and row_sum; what has been summed before is scaled to a new maximum.
template <class F>
void decode_softmax(const DecodeTile& tile, const DecodeHead& head, float unit, float* s) {
  const DecodeState& state = head.state;
  const int64_t num_rows = tile.seqlen_q * tile.group_size;
  for (int64_t r = 0; r < num_rows; ++r) {
    float* row = s + r * kScoreLd;
    float* out = state.out + r * tile.out_ld;
    if (head.is_first) {
      fill_row(out, tile.head_dim_v, 0);
      state.row_max[r] = -__builtin_inff();
      state.row_sum[r] = 0;
    }
    const float old = state.row_max[r];
    const float top = row_max_of(row, tile.num_keys, old);
    const float reference = softmax_reference(top);
    const float sum = exp_row<F>(row, tile.num_keys, reference, row);
    for (int64_t j = padded(tile.num_keys); j % kKeyGroup != 0; ++j) row[j] = 0;
    if (old != top && old != -__builtin_inff()) {
      const float factor = __builtin_expf((old - reference) * unit);
      scale_row(out, tile.head_dim_v, factor);
      state.row_sum[r] *= factor;
    }
    state.row_max[r] = top;
    state.row_sum[r] += sum;
    const ScoreRules& rules = *head.rules[r / tile.seqlen_q];
    if (rules.has_dropout) {
      apply_dropout_row(rules, r % tile.seqlen_q, tile.k_begin, tile.num_keys, row);
    }
  }
}

/// P V of a head that sees only a part of the tile: values of keys that no row sees are read from a
/// row of zeros, because they may be NaN.
template <class Keys>
void add_seen_values(const DecodeTile& tile, const DecodeHead& head, int64_t offset,
                     const uint8_t* is_seen, const char* zeros, const float* p) {
  const char* seen[static_cast<size_t>(kDecodeKeys)];
  for (int64_t j = 0; j < tile.num_keys; ++j) {
    seen[j] = is_seen[j] != 0 ? tile.v_rows[j] + offset : zeros;
  }
  const HeadRows rows(seen, tile.num_keys, 0);
  for (int64_t j = 0; j < tile.num_keys; j += kKeyGroup) {
    for_each_row_group(tile.seqlen_q * tile.group_size, [&](auto count, int64_t r) {
      Keys::template add<decltype(count)::kRows>(tile, rows.rows + j, 0, p + r * kScoreLd, j,
                                                 head.state.out + r * tile.out_ld, nullptr);
    });
  }
}

/// Products of all heads with the keys, which are read in the order in which they lie.
template <class Keys>
void decode_scores(const DecodeTile& tile, const HeadRows& k, float* s) {
  const int64_t num_rows = tile.seqlen_q * tile.group_size;
  const ScoreRules& rules = *tile.heads[0].rules[0];
  const float alpha = rules.is_log2 ? rules.softmax_scale * kLog2e : rules.softmax_scale;
  const char* rows_ahead[static_cast<size_t>(kKeyGroup)];
  for (int64_t j = 0; j < tile.num_keys; j += kKeyGroup) {
    for (int64_t h = 0; h < tile.num_heads; ++h) {
      const DecodeHead& head = tile.heads[h];
      if (!head.is_seen) continue;
      const auto* ahead = find_ahead(tile, j / kKeyGroup * tile.num_heads + h, rows_ahead);
      for_each_row_group(num_rows, [&](auto count, int64_t r) {
        Keys::template score<decltype(count)::kRows>(tile, k.rows + j, head, r, h * k.head_stride,
                                                     alpha, s + (h * num_rows + r) * kScoreLd + j,
                                                     r == 0 ? ahead : nullptr);
      });
    }
  }
}

/// The same for values, of heads that are not done.
template <class Keys>
void decode_values(const DecodeTile& tile, const HeadRows& v, const uint8_t* is_done,
                   const float* p) {
  const int64_t num_rows = tile.seqlen_q * tile.group_size;
  const int64_t num_groups = (tile.num_keys + kKeyGroup - 1) / kKeyGroup;
  const char* rows_ahead[static_cast<size_t>(kKeyGroup)];
  for (int64_t j = 0; j < tile.num_keys; j += kKeyGroup) {
    for (int64_t h = 0; h < tile.num_heads; ++h) {
      if (is_done[h] != 0) continue;
      const int64_t step = (num_groups + j / kKeyGroup) * tile.num_heads + h;
      const auto* ahead = find_ahead(tile, step, rows_ahead);
      for_each_row_group(num_rows, [&](auto count, int64_t r) {
        Keys::template add<decltype(count)::kRows>(
            tile, v.rows + j, h * v.head_stride, p + (h * num_rows + r) * kScoreLd, j,
            tile.heads[h].state.out + r * tile.out_ld, r == 0 ? ahead : nullptr);
      });
    }
  }
}

/// S of one head to P. False when it may see a part of the tile only (a bias of -inf hides keys as
/// well); then `is_seen` is set by key.
template <class Keys>
bool decode_weights(const DecodeTile& tile, const DecodeHead& head, float* s, uint8_t* is_seen) {
  const int64_t num_rows = tile.seqlen_q * tile.group_size;
  bool is_full = head.rules[0]->bias == nullptr;
  for (int64_t g = 0; g < tile.group_size; ++g) {
    is_full = is_full && head.cover[g] == TileCover::kFull;
  }
  if (!is_full || !head.rules[0]->is_plain) decode_rules(tile, head, s);
  for (int64_t j = 0; !is_full && j < tile.num_keys; ++j) {
    is_seen[j] = 0;
    for (int64_t r = 0; r < num_rows && is_seen[j] == 0; ++r) {
      is_seen[j] = s[r * kScoreLd + j] != -__builtin_inff();
    }
  }
  if (head.rules[0]->is_log2) {
    decode_softmax<Exp2>(tile, head, kDecodeLn2, s);
  } else {
    decode_softmax<Exp>(tile, head, 1, s);
  }
  if (tile.v_scales != nullptr) {
    const float* scales = tile.v_scales + (&head - tile.heads) * kDecodeKeys;
    for (int64_t r = 0; r < num_rows; ++r) {
      float* row = s + r * kScoreLd;
      for (int64_t j = 0; j < tile.num_keys; j += kLanes) {
        store(row + j, load(row + j) * load(scales + j));
      }
    }
  }
  for (int64_t r = 0; r < num_rows; ++r) Keys::make_weights(s + r * kScoreLd, tile.num_keys);
  return is_full;
}

/// s[h][r][j] *= scales[h][j]
inline void scale_keys(const DecodeTile& tile, const float* scales, float* s) {
  const int64_t num_rows = tile.seqlen_q * tile.group_size;
  for (int64_t h = 0; h < tile.num_heads; ++h) {
    for (int64_t r = 0; r < num_rows; ++r) {
      float* row = s + (h * num_rows + r) * kScoreLd;
      for (int64_t j = 0; j < tile.num_keys; j += kLanes) {
        store(row + j, load(row + j) * load(scales + h * kDecodeKeys + j));
      }
    }
  }
}

template <class Keys>
void decode_tile_of(const DecodeTile& tile) {
  const int64_t num_rows = tile.seqlen_q * tile.group_size;
  Scratch scratch{tile.scratch};
  auto* s = scratch.take<float>(tile.num_heads * num_rows * kScoreLd);
  auto* zeros = scratch.take<float>(padded(tile.head_dim_v));
  auto* is_done = scratch.take<uint8_t>(tile.num_heads);
  uint8_t is_seen[static_cast<size_t>(kDecodeKeys)];
  fill_row(zeros, tile.head_dim_v, 0);
  const HeadRows k(tile.k_rows, tile.num_keys, tile.k_head_stride);
  const HeadRows v(tile.v_rows, tile.num_keys, tile.v_head_stride);
  decode_scores<Keys>(tile, k, s);
  if (tile.k_scales != nullptr) scale_keys(tile, tile.k_scales, s);
  for (int64_t h = 0; h < tile.num_heads; ++h) {
    const DecodeHead& head = tile.heads[h];
    float* scores = s + h * num_rows * kScoreLd;
    is_done[h] = !head.is_seen || !decode_weights<Keys>(tile, head, scores, is_seen);
    if (!head.is_seen || is_done[h] == 0) continue;
    add_seen_values<Keys>(tile, head, h * tile.v_head_stride, is_seen,
                          reinterpret_cast<const char*>(zeros), scores);
  }
  decode_values<Keys>(tile, v, is_done, s);
}

inline void decode_tile(const DecodeTile& tile) {
#if defined(__AVX512BF16__)
  if (takes_pairs(tile.q_dtype, tile.dtype, tile.head_dim, tile.head_dim_v)) {
    if (tile.dtype == DType::kBF16) {
      decode_tile_of<PairedKeys<Bf16>>(tile);
    } else {
      decode_tile_of<PairedKeys<E4m3>>(tile);
    }
    return;
  }
#endif
  if (tile.dtype == DType::kF32) {
    decode_tile_of<WidenedKeys<float>>(tile);
  } else if (tile.dtype == DType::kBF16) {
    decode_tile_of<WidenedKeys<Bf16>>(tile);
  } else if (tile.dtype == DType::kI8) {
    decode_tile_of<WidenedKeys<I8>>(tile);
  } else if (tile.dtype == DType::kE4M3) {
    decode_tile_of<WidenedKeys<E4m3>>(tile);
  } else {
    decode_tile_of<WidenedKeys<F16>>(tile);
  }
}

inline void decode_queries(const DecodeQueries& queries) {
  const RowSource source{queries.rows, queries.dtype, queries.stride};
#if defined(__AVX512BF16__)
  if (takes_pairs(queries.dtype, queries.k_dtype, queries.head_dim, queries.head_dim_v)) {
    pack_rows_bf16(source, queries.num_rows, queries.head_dim, reinterpret_cast<Bf16*>(queries.q),
                   2 * queries.q_ld);
    return;
  }
#endif
  pack_rows(source, queries.num_rows, queries.head_dim, queries.q, queries.q_ld);
}

/// Row r of all parts, in order, into sum; the row's lse and largest score.
inline void join_row(const DecodeFinish& f, int64_t r, float* sum) {
  float top = -__builtin_inff();
  for (int64_t p = 0; p < f.num_parts; ++p) {
    if (f.parts[p].row_max[r] > top) top = f.parts[p].row_max[r];
  }
  f.max_logit[r] = top * f.unit;
  const float sink = f.sink == nullptr ? -__builtin_inff() : f.sink[r] / f.unit;
  const float reference = softmax_reference(sink > top ? sink : top);
  float total = 0;
  fill_row(sum, f.head_dim_v, 0);
  for (int64_t p = 0; p < f.num_parts; ++p) {
    const DecodeState& part = f.parts[p];
    if (part.row_sum[r] == 0) continue;  // saw nothing; a NaN sum stays
    const float weight = __builtin_expf((part.row_max[r] - reference) * f.unit);
    total += part.row_sum[r] * weight;
    for (int64_t d = 0; d < f.head_dim_v; d += kLanes) {
      store(sum + d, fma(broadcast(weight), load(part.out + r * f.out_ld + d), load(sum + d)));
    }
  }
  if (sink != -__builtin_inff()) total += __builtin_expf((sink - reference) * f.unit);
  const bool is_empty = total == 0;
  f.lse[r] = is_empty ? -__builtin_inff() : reference * f.unit + __builtin_logf(total);
  scale_row(sum, f.head_dim_v, is_empty ? 0 : f.gain / total);
}

inline void decode_finish(const DecodeFinish& f) {
  alignas(64) float sum[1024 + 16];
  for (int64_t r = 0; r < f.num_rows; ++r) {
    join_row(f, r, sum);
#if defined(__AVX512BF16__)
    if (takes_pairs(f.q_dtype, f.dtype, f.head_dim, f.head_dim_v)) {
      restore_columns(sum, f.head_dim_v);
    }
#endif
    unpack_rows(sum, padded(f.head_dim_v), 1, f.head_dim_v,
                {f.out_rows + r, f.out_dtype, f.out_stride});
  }
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
