// SPDX-License-Identifier: Apache-2.0
#pragma once

// Row operations on float tiles, one row of n columns at a time; the row has room for padded(n).
//
// One step of the online softmax over a strip s of scores (in units of log 2 for exp2, natural for
// exp), with running row_max and row_sum:
//
//   new_max = row_max_of(s, n, row_max);
//   ref     = softmax_reference(new_max);                    0 while the row has seen no key
//   row_sum = row_sum * 2^(row_max - ref) + exp_row<Exp2>(s, n, ref, s);
//
// -inf marks a masked score and gives exactly 0. NaN is ignored by row_max_of and comes through
// exp_row, so that a visible NaN reaches the sum and the result. Sums run in a fixed order: even
// and odd vectors apart, so that masked scores at the end of a row change no bit.

#include "cpu/kernels/gemm.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Exponentials to choose from; the fast ones have an error of 4e-6 (ExpFast: and 6e-8 |x|), for
/// results rounded to 16 bits.
struct Exp {
  static FLASHTILE_INLINE Vf of(Vf x) { return exp(x); }
};
struct Exp2 {
  static FLASHTILE_INLINE Vf of(Vf x) { return exp2(x); }
};
struct Exp2Fast {
  static FLASHTILE_INLINE Vf of(Vf x) { return exp2_fast(x); }
};
struct ExpFast {
  static FLASHTILE_INLINE Vf of(Vf x) { return exp2_fast(x * broadcast(kLog2e)); }
};

/// max(start, s[0], ..., s[n - 1]), ignoring NaN.
inline float row_max_of(const float* s, int64_t n, float start) {
  Vf a = broadcast(start);
  Vf b = a;
  int64_t j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) {
    a = max(load(s + j), a);
    b = max(load(s + j + kLanes), b);
  }
  for (; j < n; j += kLanes) {
    a = select(first_lanes(n - j), max(load_partial(s + j, n - j), a), a);
  }
  return reduce_max(max(a, b));
}

/// What a row subtracts before its exponential: its maximum, or 0 when that is -inf, so that no
/// inf - inf arises.
FLASHTILE_INLINE float softmax_reference(float row_max) {
  return row_max == -__builtin_inff() ? 0.0f : row_max;
}

/// p[j] = f(s[j] - reference) for j < n, and 0 up to padded(n); returns the sum, of unrounded
/// values. T is float or Bf16 (which may flush subnormals); p may be s.
template <typename F, typename T>
float exp_row(const float* s, int64_t n, float reference, T* p) {
  const Vf ref = broadcast(reference);
  Vf a = zero();
  Vf b = zero();
  int64_t j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) {
    const Vf x = F::of(load(s + j) - ref);
    const Vf y = F::of(load(s + j + kLanes) - ref);
    store_flush(p + j, x);
    store_flush(p + j + kLanes, y);
    a = a + x;
    b = b + y;
  }
  for (bool is_odd = false; j < n; j += kLanes, is_odd = true) {
    const Vf x = F::of(load_partial(s + j, n - j) - ref);
    const Vf kept = select(first_lanes(n - j), x, zero());
    store_flush(p + j, kept);
    (is_odd ? b : a) = (is_odd ? b : a) + kept;
  }
  return reduce_add(a + b);
}

/// A number for each lane of a row, whose sum or maximum is taken when all tiles have been seen.
struct RowLanes {
  Vf sum;  ///< of exponentials
  Vf top;  ///< of scores, ignoring NaN
};

/// As exp_row with the maximum of s besides, in one pass. p may be s.
template <typename F, typename T>
FLASHTILE_INLINE RowLanes exp_row_lanes(const float* s, int64_t n, float reference, T* p) {
  const Vf ref = broadcast(reference);
  Vf sum_a = zero();
  Vf sum_b = zero();
  Vf max_a = broadcast(-__builtin_inff());
  Vf max_b = max_a;
  int64_t j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) {
    const Vf s_a = load(s + j);
    const Vf s_b = load(s + j + kLanes);
    max_a = max(s_a, max_a);
    max_b = max(s_b, max_b);
    const Vf x = F::of(s_a - ref);
    const Vf y = F::of(s_b - ref);
    store_flush(p + j, x);
    store_flush(p + j + kLanes, y);
    sum_a = sum_a + x;
    sum_b = sum_b + y;
  }
  for (bool is_odd = false; j < n; j += kLanes, is_odd = true) {
    const Mf is_key = first_lanes(n - j);
    const Vf s_a = load_partial(s + j, n - j);
    max_a = select(is_key, max(s_a, max_a), max_a);
    const Vf kept = select(is_key, F::of(s_a - ref), zero());
    store_flush(p + j, kept);
    (is_odd ? sum_b : sum_a) = (is_odd ? sum_b : sum_a) + kept;
  }
  return {sum_a + sum_b, max(max_b, max_a)};
}

/// s[j] -> p = f(s[j] - reference) and dp[j] -> p (dp[j] - delta), 0 where p is, for j < n; both 0
/// up to padded(n). The backward's exp_row and softmax_grad_row in one pass.
template <typename F>
void exp_grad_row(float* s, float* dp, int64_t n, float reference, float delta) {
  const Vf ref = broadcast(reference);
  const Vf d = broadcast(delta);
  for (int64_t j = 0; j < n; j += kLanes) {
    Vf x = F::of(load(s + j) - ref);
    if (j + kLanes > n) x = select(first_lanes(n - j), x, zero());
    store_flush(s + j, x);
    store_flush(dp + j, select(x == zero(), zero(), x * (load(dp + j) - d)));
  }
}

/// x[j] *= factor for j < padded(n).
inline void scale_row(float* x, int64_t n, float factor) {
  const Vf f = broadcast(factor);
  for (int64_t j = 0; j < n; j += kLanes) store(x + j, load(x + j) * f);
}

/// x[j] = value for j < padded(n).
inline void fill_row(float* x, int64_t n, float value) {
  const Vf f = broadcast(value);
  for (int64_t j = 0; j < n; j += kLanes) store(x + j, f);
}

/// s[j] = -inf for the j in [0, padded(n)) outside [begin, end). Vectors inside are not looked at.
inline void mask_row_outside(float* s, int64_t n, int64_t begin, int64_t end) {
  const Vf masked = broadcast(-__builtin_inff());
  if (end < begin) end = begin;
  const auto mask_from = [&](int64_t j, int64_t last) {
    for (; j < last; j += kLanes) {
      const Mf keep = first_lanes(end - j) & ~first_lanes(begin - j);
      store(s + j, select(keep, load(s + j), masked));
    }
  };
  const int64_t seen_begin = padded(begin < n ? begin : n);
  mask_from(0, seen_begin);
  const int64_t seen_end = end / kLanes * kLanes;
  mask_from(seen_end > seen_begin ? seen_end : seen_begin, n);
}

/// s[j] = -inf for the j < n with keep[j] = 0.
inline void mask_row_bytes(float* s, int64_t n, const uint8_t* keep) {
  for (int64_t j = 0; j < n; ++j) s[j] = keep[j] != 0 ? s[j] : -__builtin_inff();
}

/// Sum of a[j] * b[j] over j < n.
inline float row_dot(const float* a, const float* b, int64_t n) {
  Vf x = zero();
  Vf y = zero();
  int64_t j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) {
    x = fma(load(a + j), load(b + j), x);
    y = fma(load(a + j + kLanes), load(b + j + kLanes), y);
  }
  for (; j < n; j += kLanes) {
    x = fma(load_partial(a + j, n - j), load_partial(b + j, n - j), x);
  }
  return reduce_add(x + y);
}

/// Sum of p[j] * dp[j] over j < padded(n); 0 counts where p is 0, whatever dp holds.
inline float weighted_sum_row(const float* p, const float* dp, int64_t n) {
  Vf sum = zero();
  for (int64_t j = 0; j < n; j += kLanes) {
    const Vf x = load(p + j);
    sum = sum + select(x == zero(), zero(), x * load(dp + j));
  }
  return reduce_add(sum);
}

/// ds[j] = p[j] * (dp[j] - delta), and exactly 0 where p is 0 (whatever dp holds), for
/// j < padded(n): the softmax's gradient with respect to its scores. T is float or Bf16.
template <typename T>
void softmax_grad_row(const float* p, const float* dp, int64_t n, float delta, T* ds) {
  const Vf d = broadcast(delta);
  for (int64_t j = 0; j < n; j += kLanes) {
    const Vf x = load(p + j);
    const Vf grad = x * (load(dp + j) - d);
    store_flush(ds + j, select(x == zero(), zero(), grad));
  }
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
