// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/simd/simd.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Fetches memory line by line, in one direction: rows of K or V from some distance behind the
/// first on, then the rows that are read after them. Each line that is read calls next(), so
/// that the distance stays. Lines of all heads, whatever head is worked on: a row of heads is one
/// stretch. Fetching in bursts, one for 16 keys of a head, costs a third of the bandwidth.
struct Fetcher {
  const char* const* rows;
  const char* const* rows_end;
  const char* const* then_rows;
  const char* const* then_rows_end;
  int64_t bytes, then_bytes;  ///< of all heads of a row
  int64_t at = 0;

  FLASHTILE_INLINE void next() {
    if (rows >= rows_end) {
      if (then_rows >= then_rows_end) return;
      rows = then_rows;
      rows_end = then_rows_end;
      bytes = then_bytes;
      then_rows = then_rows_end;
    }
    __builtin_prefetch(*rows + at, 0, 2);
    at += 64;
    if (at < bytes) return;
    at = 0;
    ++rows;
  }
};

}  // namespace flashtile::cpu::FLASHTILE_ISA
