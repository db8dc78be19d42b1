// SPDX-License-Identifier: Apache-2.0
//
// The same expressions over a block of pairs: each value is a range that holds it for every pair,
// each condition says whether it may hold and may fail. So a warp decides most blocks of a mask
// without asking their pairs. Ranges may be too wide, never too narrow; of floats nothing is known.
#pragma once

#include "cuda/device/ptx/thread.cuh"
#include "cuda/device/score/expression.cuh"

namespace flashtile::device {
namespace expression {

struct IntRange {
  static constexpr Int kLowest = -0x7fffffffffffffffll - 1, kHighest = 0x7fffffffffffffffll;
  Int low = kLowest, high = kHighest;

  IntRange() = default;
  FLASHTILE_DEVICE explicit IntRange(Int value) : low(value), high(value) {}
  FLASHTILE_DEVICE IntRange(Int l, Int h) : low(l), high(h) {}
  FLASHTILE_DEVICE Bool is_one() const { return low == high; }
  /// Ends within a limit: sums or products of such ranges do not wrap.
  FLASHTILE_DEVICE Bool is_within(Int limit) const { return low >= -limit && high <= limit; }
};
constexpr Int kSummable = 1ll << 61, kMultipliable = 1ll << 31;

struct FloatRange {
  FloatRange() = default;
  FLASHTILE_DEVICE explicit FloatRange(Float) {}
};

struct Truth {
  Bool may_hold = true, may_fail = true;

  Truth() = default;
  FLASHTILE_DEVICE explicit Truth(Bool value) : may_hold(value), may_fail(!value) {}
  FLASHTILE_DEVICE Truth(Bool holds, Bool fails) : may_hold(holds), may_fail(fails) {}
};

/// The variables of an expression over a block of pairs.
struct PairRange {
  IntRange batch, head, head_kv, q_idx, k_idx, seqlen_q, seqlen_k, query_offset, leftpad;
};

/// All pairs of some rows and keys of a sequence; the heads are of one group.
template <class Sequence>
FLASHTILE_DEVICE PairRange pair_range(const Sequence& sequence, IntRange heads, int group_size,
                                      IntRange rows, IntRange keys) {
  return {IntRange(sequence.batch_idx),
          heads,
          IntRange(static_cast<int>(heads.low) / group_size),
          rows,
          keys,
          IntRange(sequence.seqlen_q),
          IntRange(sequence.seqlen_k),
          IntRange(sequence.query_offset),
          IntRange(sequence.leftpad)};
}

FLASHTILE_DEVICE Truth logical_not(Truth a) { return {a.may_fail, a.may_hold}; }
FLASHTILE_DEVICE Truth logical_and(Truth a, Truth b) {
  return {a.may_hold && b.may_hold, a.may_fail || b.may_fail};
}
FLASHTILE_DEVICE Truth logical_or(Truth a, Truth b) {
  return {a.may_hold || b.may_hold, a.may_fail && b.may_fail};
}
FLASHTILE_DEVICE IntRange hull(IntRange a, IntRange b) {
  return {min(a.low, b.low), max(a.high, b.high)};
}
FLASHTILE_DEVICE FloatRange hull(FloatRange, FloatRange) { return {}; }
FLASHTILE_DEVICE Truth hull(Truth a, Truth b) {
  return {a.may_hold || b.may_hold, a.may_fail || b.may_fail};
}
template <class T>
FLASHTILE_DEVICE T select(Truth condition, T a, T b) {
  if (!condition.may_fail) return a;
  return condition.may_hold ? hull(a, b) : b;
}

FLASHTILE_DEVICE IntRange operator+(IntRange a, IntRange b) {
  if (!a.is_within(kSummable) || !b.is_within(kSummable)) return {};
  return {a.low + b.low, a.high + b.high};
}
FLASHTILE_DEVICE IntRange operator-(IntRange a) {
  if (!a.is_within(kSummable)) return {};
  return {-a.high, -a.low};
}
FLASHTILE_DEVICE IntRange operator-(IntRange a, IntRange b) { return a + -b; }
FLASHTILE_DEVICE IntRange operator*(IntRange a, IntRange b) {
  if (!a.is_within(kMultipliable) || !b.is_within(kMultipliable)) return {};
  const Int ends[] = {a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high};
  return {min(min(ends[0], ends[1]), min(ends[2], ends[3])),
          max(max(ends[0], ends[1]), max(ends[2], ends[3]))};
}
FLASHTILE_DEVICE IntRange abs(IntRange a) {
  if (a.low >= 0) return a;
  if (a.high <= 0 || !a.is_within(kSummable)) return -a;
  return {0, max(-a.low, a.high)};
}
FLASHTILE_DEVICE IntRange min(IntRange a, IntRange b) {
  return {min(a.low, b.low), min(a.high, b.high)};
}
FLASHTILE_DEVICE IntRange max(IntRange a, IntRange b) {
  return {max(a.low, b.low), max(a.high, b.high)};
}

/// Quotients by one positive number follow the dividend.
FLASHTILE_DEVICE IntRange int_div(IntRange a, IntRange b) {
  if (!b.is_one() || b.low <= 0) return {};
  return {int_div(a.low, b.low), int_div(a.high, b.low)};
}
FLASHTILE_DEVICE IntRange floor_div(IntRange a, IntRange b) {
  if (!b.is_one() || b.low <= 0) return {};
  return {floor_div(a.low, b.low), floor_div(a.high, b.low)};
}
FLASHTILE_DEVICE IntRange floor_mod(IntRange a, IntRange b) {
  if (!b.is_one() || b.low <= 0) return {};
  const Bool is_one_period = floor_div(a.low, b.low) == floor_div(a.high, b.low);
  if (!is_one_period) return {0, b.low - 1};
  return {floor_mod(a.low, b.low), floor_mod(a.high, b.low)};
}
FLASHTILE_DEVICE IntRange int_mod(IntRange a, IntRange b) {
  return a.low >= 0 ? floor_mod(a, b) : IntRange();
}
FLASHTILE_DEVICE IntRange shift_left(IntRange, IntRange) { return {}; }
FLASHTILE_DEVICE IntRange shift_right(IntRange a, IntRange count) {
  if (!count.is_one()) return {};
  return {shift_right(a.low, count.low), shift_right(a.high, count.low)};
}
FLASHTILE_DEVICE IntRange operator&(IntRange a, IntRange b) {
  if (a.low < 0 || b.low < 0) return {};
  return {0, min(a.high, b.high)};
}
FLASHTILE_DEVICE IntRange operator|(IntRange, IntRange) { return {}; }
FLASHTILE_DEVICE IntRange operator^(IntRange, IntRange) { return {}; }

FLASHTILE_DEVICE Truth operator<(IntRange a, IntRange b) {
  return {a.low < b.high, a.high >= b.low};
}
FLASHTILE_DEVICE Truth operator>(IntRange a, IntRange b) { return b < a; }
FLASHTILE_DEVICE Truth operator<=(IntRange a, IntRange b) { return logical_not(b < a); }
FLASHTILE_DEVICE Truth operator>=(IntRange a, IntRange b) { return logical_not(a < b); }
FLASHTILE_DEVICE Truth operator==(IntRange a, IntRange b) {
  return {a.low <= b.high && b.low <= a.high, !(a.is_one() && b.is_one() && a.low == b.low)};
}
FLASHTILE_DEVICE Truth operator!=(IntRange a, IntRange b) { return logical_not(a == b); }

FLASHTILE_DEVICE IntRange to_int(FloatRange) { return {}; }
FLASHTILE_DEVICE IntRange to_int(Truth a) { return {a.may_fail ? 0 : 1, a.may_hold ? 1 : 0}; }
FLASHTILE_DEVICE FloatRange to_float(IntRange) { return {}; }
FLASHTILE_DEVICE FloatRange to_float(Truth) { return {}; }
FLASHTILE_DEVICE Truth to_bool(IntRange a) { return a != IntRange(0); }
FLASHTILE_DEVICE Truth to_bool(FloatRange) { return {}; }

FLASHTILE_DEVICE FloatRange operator-(FloatRange) { return {}; }
FLASHTILE_DEVICE FloatRange operator+(FloatRange, FloatRange) { return {}; }
FLASHTILE_DEVICE FloatRange operator-(FloatRange, FloatRange) { return {}; }
FLASHTILE_DEVICE FloatRange operator*(FloatRange, FloatRange) { return {}; }
FLASHTILE_DEVICE FloatRange operator/(FloatRange, FloatRange) { return {}; }
FLASHTILE_DEVICE Truth operator<(FloatRange, FloatRange) { return {}; }
FLASHTILE_DEVICE Truth operator>(FloatRange, FloatRange) { return {}; }
FLASHTILE_DEVICE Truth operator<=(FloatRange, FloatRange) { return {}; }
FLASHTILE_DEVICE Truth operator>=(FloatRange, FloatRange) { return {}; }
FLASHTILE_DEVICE Truth operator==(FloatRange, FloatRange) { return {}; }
FLASHTILE_DEVICE Truth operator!=(FloatRange, FloatRange) { return {}; }
FLASHTILE_DEVICE FloatRange abs(FloatRange) { return {}; }
FLASHTILE_DEVICE FloatRange min(FloatRange, FloatRange) { return {}; }
FLASHTILE_DEVICE FloatRange max(FloatRange, FloatRange) { return {}; }
FLASHTILE_DEVICE FloatRange exp(FloatRange) { return {}; }
FLASHTILE_DEVICE FloatRange log(FloatRange) { return {}; }
FLASHTILE_DEVICE FloatRange log2(FloatRange) { return {}; }
FLASHTILE_DEVICE FloatRange tanh(FloatRange) { return {}; }
FLASHTILE_DEVICE FloatRange sigmoid(FloatRange) { return {}; }
FLASHTILE_DEVICE FloatRange sqrt(FloatRange) { return {}; }
FLASHTILE_DEVICE FloatRange sin(FloatRange) { return {}; }
FLASHTILE_DEVICE FloatRange cos(FloatRange) { return {}; }
FLASHTILE_DEVICE FloatRange floor(FloatRange) { return {}; }
FLASHTILE_DEVICE FloatRange pow(FloatRange, FloatRange) { return {}; }
FLASHTILE_DEVICE FloatRange fmod(FloatRange, FloatRange) { return {}; }

/// Joins the indices of a load: the first element's offset, and the one dimension that is a range.
struct AuxSpan {
  Int offset = 0;
  Int stride = 0;
  Int count = 1;
  Bool is_line = true;       ///< at most one dimension is a range, and not a long one
  Bool has_outside = false;  ///< some index names no element: it gives 0
};
FLASHTILE_DEVICE void add_index(const AuxParam&, int, AuxSpan&) {}
template <class... Rest>
FLASHTILE_DEVICE void add_index(const AuxParam& aux, int dim, AuxSpan& span, IntRange index,
                                Rest... rest) {
  constexpr Int kLongest = 4096;
  const Int last = aux.shape[dim] - 1;
  span.has_outside = span.has_outside || index.low < 0 || index.high > last;
  const Int low = max(index.low, Int(0)), high = min(index.high, last);
  if (low > high) {
    span.count = 0;
  } else if (low < high) {
    span.is_line = span.is_line && span.stride == 0 && high - low < kLongest;
    span.stride = aux.strides[dim];
    span.count = span.count == 0 ? 0 : high - low + 1;
  }
  span.offset += low * aux.strides[dim];
  add_index(aux, dim + 1, span, rest...);
}

/// What the elements of an integer tensor lie between; asked by all lanes together.
template <class... Index>
FLASHTILE_DEVICE IntRange load_int_range(const AuxParam& aux, Index... index) {
  AuxSpan span;
  add_index(aux, 0, span, index...);
  if (!span.is_line) return {};
  Int low = IntRange::kHighest, high = IntRange::kLowest;
  if (span.has_outside || span.count == 0) low = high = 0;
  // Some reads are under way together.
  constexpr int kAtOnce = 4;
  const Bool is_wide = aux.element_bytes == 8;
  for (Int first = lane_idx(); first < span.count; first += kAtOnce * kWarpSize) {
    FLASHTILE_UNROLL
    for (int n = 0; n < kAtOnce; ++n) {
      const Int i = first + n * kWarpSize;
      const char* address = aux.data + span.offset + i * span.stride;
      const Bool is_there = i < span.count;
      const Int wide = load_global_if(is_there & is_wide, reinterpret_cast<const Int*>(address));
      const uint32 narrow =
          load_global_if(is_there & !is_wide, reinterpret_cast<const uint32*>(address));
      const Int value = is_wide ? wide : static_cast<int>(narrow);
      if (is_there) {
        low = min(low, value);
        high = max(high, value);
      }
    }
  }
  if (!is_wide) {
    constexpr Int kMostOfInt = 0x7fffffff;
    return {least_of_lanes(static_cast<int>(min(low, kMostOfInt))),
            largest_of_lanes(static_cast<int>(max(high, -kMostOfInt - 1)))};
  }
  FLASHTILE_UNROLL
  for (int lane_mask = 1; lane_mask < kWarpSize; lane_mask *= 2) {
    low = min(low, shuffle_xor(low, lane_mask));
    high = max(high, shuffle_xor(high, lane_mask));
  }
  return {low, high};
}

}  // namespace expression
}  // namespace flashtile::device
