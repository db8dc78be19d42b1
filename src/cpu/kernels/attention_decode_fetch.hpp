// SPDX-License-Identifier: Apache-2.0
#pragma once

// Fetching of keys and values ahead of decoding.
//
// While products run, the next tile is fetched line by line in the order of memory, a line for each
// few instructions: its keys by products with keys, its values by those with values, or, where keys
// lie in pages, both by both, eight lines in turns. A processor drops what it is asked to fetch in
// bursts, and only where lines follow each other does it see a stream coming and fetch ahead by
// itself; where streams end soon, two keep more of the memory busy than one. See docs/notebook.md
// for figures.

#include "cpu/simd/simd.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Keys that are worked on together.
inline constexpr int64_t kKeyGroup = 16;

/// Fetches the line of p, in program order behind the instruction that made x: compilers would move
/// all fetches to the front.
FLASHTILE_INLINE void fetch_line_after(Vf& x, const char* p) {
#if defined(__AVX512F__)
  asm volatile("prefetcht0 %1" : "+v"(x.v) : "m"(*p));
#elif defined(__AVX__)
  asm volatile("prefetcht0 %1" : "+x"(x.v) : "m"(*p));
#else
  static_cast<void>(x);
  __builtin_prefetch(p, 0, 3);
#endif
}

/// Makes the compiler load what p points to again instead of keeping more addresses than there are
/// registers.
template <class T>
FLASHTILE_INLINE void forget(T*& p) {
  asm volatile("" : "+r"(p));
}

/// Walks over rows in the order of memory, a chunk of eight places at a time. Behind the last row
/// it begins again.
struct RowWalk {
  static constexpr int64_t kPlaces = 8;

  /// The first place of a chunk, and how far its places lie apart.
  struct Chunk {
    const char* first;
    int64_t step;
  };

  /// `row_bytes` of all heads of a key, of which a product takes `unit` at a time.
  RowWalk(const char* const* first_row, int64_t count, int64_t row_bytes, int64_t unit)
      : rows_(first_row),
        num_rows_(count),
        stretch_(row_bytes),
        step_(unit),
        advance_(kPlaces * unit) {
    if (stretch_ % advance_ == 0) return;
    // Few lines a row: the same ones of eight rows, where these lie equally far apart.
    const int64_t distance = rows_[1] - rows_[0];
    const bool is_even = rows_[kPlaces - 1] - rows_[0] == (kPlaces - 1) * distance;
    rows_together_ = kPlaces;
    step_ = is_even ? distance : 0;
    advance_ = unit;
  }

  FLASHTILE_INLINE Chunk next() {
    const Chunk chunk = {rows_[place_.row] + place_.at, step_};
    place_.at += advance_;
    if (place_.at >= stretch_) {
      place_.at = 0;
      place_.row += rows_together_;
      if (place_.row >= num_rows_) place_.row = 0;
    }
    return chunk;
  }

  /// Where it is, to go on from there again.
  struct Place {
    int64_t row, at;
  };
  FLASHTILE_INLINE Place place() const { return place_; }
  FLASHTILE_INLINE void go_to(Place place) { place_ = place; }

 private:
  const char* const* rows_;  ///< of the first head
  int64_t num_rows_;
  int64_t rows_together_ = 1;
  int64_t stretch_, step_, advance_;
  Place place_{0, 0};
};

/// What one step of a product fetches: sixteen places, one after the other.
struct FetchStep {
  RowWalk::Chunk first, second;

  FLASHTILE_INLINE void fetch_after(Vf& x, int64_t place) {
    RowWalk::Chunk& chunk = place % (2 * RowWalk::kPlaces) < RowWalk::kPlaces ? first : second;
    fetch_line_after(x, chunk.first);
    chunk.first += chunk.step;
  }
};

/// What a product fetches: eight places of either walk in turns, which may be the same one.
struct TileFetch {
  RowWalk *first, *second;

  FLASHTILE_INLINE FetchStep next() {
    forget(first);
    forget(second);
    const RowWalk::Chunk chunk = first->next();
    return {chunk, second->next()};
  }
};

}  // namespace flashtile::cpu::FLASHTILE_ISA
