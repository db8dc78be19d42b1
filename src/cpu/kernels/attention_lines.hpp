// SPDX-License-Identifier: Apache-2.0
#pragma once

// What is added to scores along lines: one number for all pairs of a tile with the same
// k_idx - shift q_idx. With shift 1 those are its diagonals, m + n - 1 of them for m n pairs:
// ALiBi, relative biases whatever their form. With shift 0 they are its keys. The numbers of a tile
// are worked out once and the product adds them when it is stored; gradients are summed along lines
// before anything else is done with them.

#include "cpu/kernels/attention_scores.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// What the lines of a tile add, in the scores' units: pair (i, j) has row(i)[j]. Null: nothing.
struct Lines {
  const float* first_row;
  int64_t shift;

  FLASHTILE_INLINE const float* row(int64_t i) const { return first_row - i * shift; }
};

/// Numbers that a tile's lines take, with whole strips at the end.
inline constexpr int64_t lines_room(int64_t block_m, int64_t block_n) {
  return block_m + block_n + kStrip;
}

FLASHTILE_INLINE bool has_lines(const ScoreRules& rules) {
  return rules.has_alibi || rules.line.program != nullptr;
}

/// Lines of a tile are diagonals where slopes act; the program has the same then.
FLASHTILE_INLINE int64_t shift_of(const ScoreRules& rules) {
  return rules.has_alibi ? 1 : rules.line_shift;
}

FLASHTILE_INLINE int64_t num_lines(const TileSpan& tile, int64_t shift) {
  return tile.n + (tile.m - 1) * shift;
}

/// Runs the program for all lines of a tile, each for one of its pairs or, at the ends of a strip,
/// for none; body(first, count) for each strip.
template <class Body>
FLASHTILE_INLINE void for_each_line_strip(Strips& program, const TileSpan& tile, int64_t shift,
                                          const Body& body) {
  const int64_t count = num_lines(tile, shift);
  strip_row(program.machine, tile.q_begin + tile.m - 1);
  for (int64_t x = 0; x < count; x += kStrip) {
    const int64_t lanes = count - x < kStrip ? count - x : kStrip;
    strip_columns(program.machine, tile.k_begin + x, lanes);
    strip_run(program.machine, nullptr);
    body(x, lanes);
  }
}

/// Works out the lines of a tile, if it has any, in `values` (lines_room numbers), and lets the
/// product of Q and K add them. Where a rule acts on scores before, they are returned instead, for
/// add_line_row.
inline Lines fill_lines(const ScoreRules& rules, Strips& program, const TileSpan& tile,
                        float* values, GemmC& product) {
  if (!has_lines(rules)) return {nullptr, 0};
  const Vf unit = broadcast(rules.is_log2 ? kLog2e : 1.0f);
  const int64_t shift = shift_of(rules);
  if (program.is_given()) {
    for_each_line_strip(program, tile, shift, [&](int64_t first, int64_t) {
      const float* from = strip_floats(program.machine, 0);
      for (int64_t x = 0; x < kStrip; x += kLanes) store(values + first + x, load(from + x) * unit);
    });
  }
  if (rules.has_alibi) {
    const Vf slope = broadcast(rules.alibi_slope) * unit;
    const Distances distances(rules, tile.q_begin + tile.m - 1, tile.k_begin);
    for (int64_t x = 0; x < num_lines(tile, shift); x += kLanes) {
      const Vf other = program.is_given() ? load(values + x) : zero();
      store(values + x, fnma(slope, distances.at(x), other));
    }
  }
  const float* first_row = values + (tile.m - 1) * shift;
  if (rules.softcap > 0 || rules.score.program != nullptr) return {first_row, shift};
  product.addend = first_row;
  product.addend_row_stride = -shift;
  return {nullptr, 0};
}

/// Adds lines, if any are left, to row i of a tile of scores.
inline void add_line_row(const Lines& lines, int64_t i, int64_t n, float* s) {
  if (lines.first_row == nullptr) return;
  const float* line = lines.row(i);
  for (int64_t j = 0; j < n; j += kLanes) store(s + j, load(s + j) + load(line + j));
}

/// True where the slope makes scores of row i grow by more than `slack` within a block of keys.
FLASHTILE_INLINE bool has_growth(const ScoreRules& rules, const TileSpan& tile, int64_t i,
                                 int64_t block_n, float slack) {
  if (!rules.has_alibi) return false;
  const float slope = rules.alibi_slope * kLog2e;
  const float size = slope < 0 ? -slope : slope;
  if (size * static_cast<float>(kMaxBlockN) <= slack) return false;
  // Towards the row's own position with a slope above 0, away from it with one below.
  const int64_t position = tile.q_begin + i + rules.query_offset;
  const int64_t block_begin = tile.k_begin / block_n * block_n;
  return slope > 0 ? block_begin <= position : block_begin + block_n > position;
}

/// Rows [begin, end) of a tile, those of [whole_begin, whole_end) with a whole vector.
struct LineRows {
  int64_t begin, whole_begin, whole_end, end;
};

/// The rows that have pairs on the lines x .. x + kLanes - 1.
FLASHTILE_INLINE LineRows rows_of_lines(const TileSpan& span, int64_t shift, int64_t x) {
  if (shift == 0) {
    const int64_t end = x + kLanes <= span.n ? span.m : 0;
    return {0, 0, end, span.m};
  }
  const auto clamp = [&](int64_t i) { return i < 0 ? 0 : i < span.m ? i : span.m; };
  const int64_t row = span.m - 1 - x;  // whose column 0 is on line x
  LineRows rows{clamp(row - kLanes + 1), clamp(row), clamp(row + span.n - kLanes + 1),
                clamp(row + span.n)};
  if (rows.whole_end < rows.whole_begin) rows.whole_end = rows.whole_begin;
  return rows;
}

/// sums[x] = the sum of line x over the rows of a tile (m, ld), in an order that the tile's sizes
/// decide. Up to a vector before and after each row is read.
inline void sum_lines(const float* tile, int64_t ld, const TileSpan& span, int64_t shift,
                      float* sums) {
  constexpr int64_t kChains = 4;
  const int64_t step = ld + shift;  // from a pair to the next of its line
  for (int64_t x = 0; x < num_lines(span, shift); x += kLanes) {
    const LineRows rows = rows_of_lines(span, shift, x);
    const float* at = tile + x - (span.m - 1) * shift;
    Vf sum[static_cast<size_t>(kChains)] = {zero(), zero(), zero(), zero()};
    const auto add_cut = [&](int64_t i) {
      const int64_t j = x - (span.m - 1 - i) * shift;
      const Mf is_pair = first_lanes(span.n - j) & ~first_lanes(-j);
      sum[0] = sum[0] + select(is_pair, load(at + i * step), zero());
    };
    for (int64_t i = rows.begin; i < rows.whole_begin; ++i) add_cut(i);
    int64_t i = rows.whole_begin;
    for (; i + kChains <= rows.whole_end; i += kChains) {
      FLASHTILE_UNROLL
      for (int c = 0; c < kChains; ++c) sum[c] = sum[c] + load(at + (i + c) * step);
    }
    for (; i < rows.whole_end; ++i) sum[0] = sum[0] + load(at + i * step);
    for (; i < rows.end; ++i) add_cut(i);
    store(sums + x, (sum[0] + sum[1]) + (sum[2] + sum[3]));
  }
}

/// Adds row i of a tile to the sums of its lines.
inline void sum_line_row(const float* row, int64_t i, const TileSpan& span, int64_t shift,
                         float* sums) {
  float* to = sums + (span.m - 1 - i) * shift;
  for (int64_t j = 0; j < span.n; ++j) to[j] += row[j];
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
