// SPDX-License-Identifier: Apache-2.0
//
// Masks by position: causal, windows and chunks, and every user mask that a pattern shows to be
// one. For each query the visible keys are one range, whose two ends never move back from one query
// to the next; block bounds follow from that alone. Host, SIMD and device text: no header.
#pragma once

#ifndef FLASHTILE_VARIANT_INLINE
/// Never a symbol of its own: files for different instruction sets include this text.
#define FLASHTILE_VARIANT_INLINE inline __attribute__((always_inline))
#endif

namespace flashtile::variant {

/// Keys (or queries) [begin, end); empty where end <= begin.
struct KeyRange {
  long long begin, end;
};

/// key - query lies in [lower, upper], both inside [0, seqlen_k), and both positions lie in one
/// chunk (0: no chunks).
struct PositionMask {
  static constexpr long long kUnbounded = 1LL << 60;

  long long lower = -kUnbounded;
  long long upper = kUnbounded;
  long long chunk = 0;
  long long query_offset = 0;
  long long seqlen_k = 0;

  /// The keys that query q_idx sees.
  FLASHTILE_VARIANT_INLINE KeyRange keys(long long q_idx) const {
    long long begin = q_idx + lower;
    long long end = q_idx + upper + 1;
    if (chunk > 0) {
      const long long position = q_idx + query_offset;
      long long rest = position % chunk;
      if (rest < 0) rest += chunk;
      const long long first = position - rest;
      if (first > begin) begin = first;
      if (first + chunk < end) end = first + chunk;
    }
    if (begin < 0) begin = 0;
    if (end > seqlen_k) end = seqlen_k;
    return {begin, end};
  }

  /// The queries from which on key k_idx is seen, and from which on it is not any more. May lie
  /// outside of those that there are; k_idx is below seqlen_k.
  FLASHTILE_VARIANT_INLINE KeyRange queries(long long k_idx) const {
    long long begin = k_idx - upper;
    long long end = k_idx - lower + 1;
    if (chunk > 0) {
      const long long first = k_idx - k_idx % chunk - query_offset;
      if (first > begin) begin = first;
      if (first + chunk < end) end = first + chunk;
    }
    return {begin, end};
  }
};

}  // namespace flashtile::variant
