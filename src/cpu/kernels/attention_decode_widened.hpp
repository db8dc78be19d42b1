// SPDX-License-Identifier: Apache-2.0
#pragma once

// The products of decoding in float32, over keys of float32, f16, or bf16 where there is no dot
// product for it. Keys of one byte are widened to rows of float32 before, 16 keys of a head at a
// time.

#include "cpu/kernels/attention_decode_fetch.hpp"
#include "cpu/kernels/gemm.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Rows of keys or values: kKeyGroup addresses, of the head that lies `offset` bytes on.
struct KeyGroupRows {
  const char* const* rows;
  int64_t offset;

  template <class T>
  FLASHTILE_INLINE const T* row(int64_t u, int64_t d) const {
    return reinterpret_cast<const T*>(rows[u] + offset) + d;
  }
};

/// Rows of sums: those before the product, and those with it.
struct SumRows {
  const float* from;
  int64_t from_ld;
  float* to;
  int64_t to_ld;
};

template <int kRows, int kColumns>
using Sums = Vf[static_cast<size_t>(kRows)][static_cast<size_t>(kColumns)];

/// s[r][u] = alpha q_r . k_u for kRows rows and the keys of a group. Keys are turned into lanes, so
/// that a score is one chain over d, as in gemm.hpp.
template <int kRows, class T>
FLASHTILE_NOINLINE void score_widened(KeyGroupRows k, const float* q, int64_t q_ld, int64_t dim,
                                      float alpha, float* s, int64_t s_ld, TileFetch fetch) {
  for (int64_t first = 0; first < kKeyGroup; first += kLanes) {
    Vf sum[static_cast<size_t>(kRows)];
    FLASHTILE_UNROLL
    for (int r = 0; r < kRows; ++r) sum[r] = zero();
    FetchStep ahead{};
    for (int64_t d = 0, n = 0; d < dim; d += kLanes, n += kLanes) {
      const int64_t left = dim - d;
      if (n % kKeyGroup == 0) ahead = fetch.next();
      forget(k.rows);
      Vu x[static_cast<size_t>(kLanes)];
      FLASHTILE_UNROLL
      for (int u = 0; u < kLanes; ++u) {
        const T* row = k.row<T>(first + u, d);
        x[u] = as_vu(left >= kLanes ? load(row) : load_partial(row, left));
      }
      transpose(x);
      FLASHTILE_UNROLL
      for (int c = 0; c < kLanes; ++c) {
        FLASHTILE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          sum[r] = fma(broadcast(q[r * q_ld + d + c]), as_vf(x[c]), sum[r]);
        }
        ahead.fetch_after(sum[0], c);
      }
    }
    FLASHTILE_UNROLL
    for (int r = 0; r < kRows; ++r) store(s + r * s_ld + first, sum[r] * broadcast(alpha));
  }
}

/// Sums + P V for the keys of a group, kRows rows and kVecs vectors of columns from d on, of which
/// the last one may be `last` columns wide.
template <int kRows, int kVecs, bool is_whole, class T>
FLASHTILE_NOINLINE void add_columns(KeyGroupRows v, const float* p, int64_t p_ld,
                                    const SumRows& sums, int64_t d, int64_t last, TileFetch fetch) {
  Sums<kRows, kVecs> sum;
  FLASHTILE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    FLASHTILE_UNROLL
    for (int c = 0; c < kVecs; ++c) sum[r][c] = load(sums.from + r * sums.from_ld + d + c * kLanes);
  }
  FetchStep ahead{};
  for (int64_t u = 0; u < kKeyGroup; ++u) {
    if (u * kVecs % kKeyGroup == 0) ahead = fetch.next();
    const T* row = v.row<T>(u, d);
    Vf x[static_cast<size_t>(kVecs)];
    FLASHTILE_UNROLL
    for (int c = 0; c < kVecs; ++c) {
      const T* at = row + c * kLanes;
      x[c] = is_whole || c + 1 < kVecs ? load(at) : load_partial(at, last);
    }
    FLASHTILE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Vf weight = broadcast(p[r * p_ld + u]);
      FLASHTILE_UNROLL
      for (int c = 0; c < kVecs; ++c) sum[r][c] = fma(weight, x[c], sum[r][c]);
    }
    FLASHTILE_UNROLL
    for (int c = 0; c < kVecs; ++c) ahead.fetch_after(sum[0][c], u * kVecs + c);
  }
  FLASHTILE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    FLASHTILE_UNROLL
    for (int c = 0; c < kVecs; ++c) store(sums.to + r * sums.to_ld + d + c * kLanes, sum[r][c]);
  }
}

/// All columns.
template <int kRows, class T>
FLASHTILE_INLINE void add_widened(KeyGroupRows v, const float* p, int64_t p_ld, int64_t dim,
                                  const SumRows& sums, TileFetch fetch) {
  int64_t d = 0;
  for (; d + 4 * kLanes <= dim; d += 4 * kLanes) {
    add_columns<kRows, 4, true, T>(v, p, p_ld, sums, d, kLanes, fetch);
  }
  for (; d < dim; d += kLanes) {
    add_columns<kRows, 1, false, T>(v, p, p_ld, sums, d, dim - d, fetch);
  }
}

/// Rows of a group as float32, side by side: row u begins at to + u * ld.
template <class T>
void widen_group(KeyGroupRows rows, int64_t dim, float* to, int64_t ld) {
  for (int64_t u = 0; u < kKeyGroup; ++u, to += ld) {
    const T* row = rows.row<T>(u, 0);
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) store(to + d, load(row + d));
    if (d < dim) store(to + d, load_partial(row + d, dim - d));
  }
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
