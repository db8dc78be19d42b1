// SPDX-License-Identifier: Apache-2.0
#pragma once

// What happens to a tile of scores between q.k and the softmax, row by row: softcap, user score,
// bias, ALiBi, masks, dropout. A tile is (rows, ld) floats; its rows have room for padded(n).

#include "cpu/kernels/attention_operands.hpp"
#include "cpu/kernels/attention_types.hpp"
#include "cpu/kernels/rows.hpp"
#include "cpu/kernels/strip.hpp"
#include "cpu/simd/simd.hpp"
#include "variant/philox.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Which scores a tile holds: rows q_begin .. q_begin + m of keys k_begin .. k_begin + n.
struct TileSpan {
  int64_t q_begin, m;
  int64_t k_begin, n;
};

/// Both a score expression's strips and a random word's columns divide the block sizes.
inline constexpr int64_t kMaxBlockN = 128;

/// s = softcap tanh(s / softcap).
inline void softcap_row(float softcap, float* s, int64_t n) {
  const Vf cap = broadcast(softcap);
  const Vf inverse = broadcast(1.0f / softcap);
  for (int64_t j = 0; j < n; j += kLanes) store(s + j, cap * tanh(load(s + j) * inverse));
}

/// s += bias of n keys that lie side by side, and -inf where the bias is -inf, whatever s was. What
/// follows in the row is that of the next tile.
template <class T>
FLASHTILE_INLINE void add_bias_of(const T* bias, int64_t n, float* s) {
  const Vf masked = broadcast(-__builtin_inff());
  for (int64_t j = 0; j < n; j += kLanes) {
    __builtin_prefetch(bias + n + j, 0, 2);
    const Vf b = load_partial(bias + j, n - j);
    store(s + j, select(b == masked, masked, load(s + j) + b));
  }
}

/// The same for keys `stride` bytes apart.
template <class T>
FLASHTILE_INLINE void add_bias_row_of(const char* bias, int64_t stride, int64_t n, float* s) {
  if (stride == static_cast<int64_t>(sizeof(T))) {
    add_bias_of(reinterpret_cast<const T*>(bias), n, s);
    return;
  }
  T row[kMaxBlockN];
  for (int64_t j = 0; j < n; ++j) __builtin_memcpy(row + j, bias + j * stride, sizeof(T));
  add_bias_of(row, n, s);
}

inline void add_bias_row(const ScoreRules& rules, int64_t q_idx, int64_t k_begin, int64_t n,
                         float* s) {
  const int64_t stride = rules.bias_key_stride;
  const char* bias = rules.bias + q_idx * rules.bias_row_stride + k_begin * stride;
  if (rules.bias_dtype == DType::kF32) {
    add_bias_row_of<float>(bias, stride, n, s);
  } else if (rules.bias_dtype == DType::kBF16) {
    add_bias_row_of<Bf16>(bias, stride, n, s);
  } else {
    add_bias_row_of<F16>(bias, stride, n, s);
  }
}

/// |position of q_idx - key| for the lanes that start at key k_begin + j. Distances are below 2^24
/// or rounded as float32 rounds them.
struct Distances {
  Vf first;

  FLASHTILE_INLINE Distances(const ScoreRules& rules, int64_t q_idx, int64_t k_begin)
      : first(broadcast(static_cast<float>(q_idx + rules.query_offset - k_begin)) -
              i32_to_float(iota_u())) {}
  FLASHTILE_INLINE Vf at(int64_t j) const { return abs(first - broadcast(static_cast<float>(j))); }
};

/// s = alpha s - slope |position - key|, in the scores' units, rounded as Lines do it for tiles of
/// many rows: slope times distance, then the sum.
inline void add_alibi_row(const ScoreRules& rules, int64_t q_idx, int64_t k_begin, int64_t n,
                          float alpha, float* s) {
  const Vf slope = broadcast(rules.alibi_slope * (rules.is_log2 ? kLog2e : 1.0f));
  const Distances distances(rules, q_idx, k_begin);
  for (int64_t j = 0; j < n; j += kLanes) {
    store(s + j, fma(load(s + j), broadcast(alpha), fnma(slope, distances.at(j), zero())));
  }
}

/// A strip program that is ready for tiles of one head.
struct Strips {
  StripMachine machine;
  int32_t* error;

  FLASHTILE_INLINE bool is_given() const { return machine.program != nullptr; }
};

/// Opens a program in scratch memory; nothing where there is none. `bound` must stay.
inline Strips open_strips(const BoundProgram& bound, Scratch& scratch) {
  Strips strips{{}, bound.error};
  if (bound.program == nullptr) return strips;
  strip_open(strips.machine, *bound.program, scratch.take_bytes(strip_bytes(*bound.program)));
  strip_tile(strips.machine, bound.inputs);
  return strips;
}

FLASHTILE_INLINE void report_error(const Strips& strips) {
  if (strips.error != nullptr && strips.machine.error != 0) *strips.error = strips.machine.error;
}

/// Rows of a tile that positions cut are worked on in parts, a multiple of the rows of a register
/// tile: each leaves out the keys that only others see. Four of a block save a third of the tile on
/// a causal diagonal.
inline constexpr int64_t kPartRows = kHasTiles ? 32 : 24;
/// What parts begin at, in keys: whole vectors of every instruction set, and steps of a product.
inline constexpr int64_t kTrimKeys = kHasTiles ? 32 : 16;

/// True where every row of a tile sees all of its keys: by position, and nothing else hides any.
FLASHTILE_INLINE bool sees_all(const ScoreRules& rules, const TileSpan& tile) {
  if (rules.list_first != nullptr || rules.mask.program != nullptr) return false;
  return rules.position.keys(tile.q_begin + tile.m - 1).begin <= tile.k_begin &&
         rules.position.keys(tile.q_begin).end >= tile.k_begin + tile.n;
}

/// Calls body(part, is_full) for a tile that is seen in part: for parts of `part_rows` rows, each
/// trimmed by trim(part), which may leave nothing of it. Neighbours with the same keys go together.
template <class Trim, class Body>
FLASHTILE_INLINE void for_each_part(const ScoreRules& rules, const TileSpan& tile,
                                    int64_t part_rows, const Trim& trim, const Body& body) {
  TileSpan pending{0, 0, 0, 0};
  const auto finish_pending = [&] {
    if (pending.m > 0) body(pending, sees_all(rules, pending));
  };
  for (int64_t row = 0; row < tile.m; row += part_rows) {
    const int64_t left = tile.m - row;
    const TileSpan part = trim(
        TileSpan{tile.q_begin + row, left < part_rows ? left : part_rows, tile.k_begin, tile.n});
    if (part.m <= 0 || part.n <= 0) continue;
    if (part.q_begin == pending.q_begin + pending.m && part.k_begin == pending.k_begin &&
        part.n == pending.n) {
      pending.m += part.m;
      continue;
    }
    finish_pending();
    pending = part;
  }
  finish_pending();
}

/// The programs of one block.
struct BlockPrograms {
  Strips score, guarded_score, line, mask;

  FLASHTILE_INLINE Strips& score_for(bool is_full) { return is_full ? score : guarded_score; }
};

inline BlockPrograms open_programs(const ScoreRules& rules, Scratch& scratch) {
  return {open_strips(rules.score, scratch), open_strips(rules.guarded_score, scratch),
          open_strips(rules.line, scratch), open_strips(rules.mask, scratch)};
}

/// The user score of a tile, in place, strip by strip of its keys.
inline void apply_user_score(Strips& strips, const TileSpan& tile, float* s, int64_t ld) {
  float score[kStrip];
  for (int64_t j = 0; j < tile.n; j += kStrip) {
    const int64_t count = tile.n - j < kStrip ? tile.n - j : kStrip;
    strip_columns(strips.machine, tile.k_begin + j, count);
    for (int64_t i = 0; i < tile.m; ++i) {
      float* row = s + i * ld + j;
      __builtin_memcpy(score, row, static_cast<size_t>(count) * sizeof(float));
      strip_row(strips.machine, tile.q_begin + i);
      strip_run(strips.machine, score);
      __builtin_memcpy(row, strip_floats(strips.machine, 0),
                       static_cast<size_t>(count) * sizeof(float));
    }
  }
  report_error(strips);
}

inline void apply_softcap(const ScoreRules& rules, const TileSpan& tile, float* s, int64_t ld) {
  if (rules.softcap <= 0) return;
  for (int64_t i = 0; i < tile.m; ++i) softcap_row(rules.softcap, s + i * ld, tile.n);
}

inline void add_bias(const ScoreRules& rules, const TileSpan& tile, float* s, int64_t ld) {
  for (int64_t i = 0; rules.bias != nullptr && i < tile.m; ++i) {
    add_bias_row(rules, tile.q_begin + i, tile.k_begin, tile.n, s + i * ld);
  }
}

/// Everything before the masks but lines, for all rows of a tile of scaled products.
inline void apply_scores(const ScoreRules& rules, BlockPrograms& programs, const TileSpan& tile,
                         bool is_full, float* s, int64_t ld) {
  apply_softcap(rules, tile, s, ld);
  Strips& score = programs.score_for(is_full);
  if (score.is_given()) apply_user_score(score, tile, s, ld);
  add_bias(rules, tile, s, ld);
}

/// Masks the keys that a block list does not give to a row.
inline void mask_row_by_list(const ScoreRules& rules, int64_t q_idx, int64_t k_begin, int64_t n,
                             float* s) {
  const int64_t row = q_idx / rules.block_rows;
  int64_t entry = rules.list_first[row];
  int64_t end_entry = rules.list_first[row + 1];
  const int64_t first_col = k_begin / rules.block_cols;
  for (int64_t high = end_entry; entry < high;) {  // the first entry from first_col on
    const int64_t middle = entry + (high - entry) / 2;
    if (rules.list_cols[middle] < first_col) {
      entry = middle + 1;
    } else {
      high = middle;
    }
  }
  for (int64_t j = 0; j < n;) {
    const int64_t col = (k_begin + j) / rules.block_cols;
    const int64_t next = (col + 1) * rules.block_cols - k_begin;
    const int64_t end = next < n ? next : n;
    while (entry < end_entry && rules.list_cols[entry] < col) ++entry;
    const bool is_listed = entry < end_entry && rules.list_cols[entry] == col;
    for (; j < end; ++j) s[j] = is_listed ? s[j] : -__builtin_inff();
  }
}

inline void mask_tile_by_program(Strips& strips, const TileSpan& tile, float* s, int64_t ld) {
  for (int64_t j = 0; j < tile.n; j += kStrip) {
    const int64_t count = tile.n - j < kStrip ? tile.n - j : kStrip;
    strip_columns(strips.machine, tile.k_begin + j, count);
    for (int64_t i = 0; i < tile.m; ++i) {
      strip_row(strips.machine, tile.q_begin + i);
      strip_run(strips.machine, nullptr);
      mask_row_bytes(s + i * ld + j, count, strip_bools(strips.machine, 0));
    }
  }
  report_error(strips);
}

/// -inf for every key of a tile that its row does not see by position or by a list. Keys past the
/// tile's n are masked too, up to padded(n).
inline void apply_position_masks(const ScoreRules& rules, const TileSpan& tile, bool is_full,
                                 float* s, int64_t ld) {
  if (is_full && tile.n == padded(tile.n)) return;
  for (int64_t i = 0; i < tile.m; ++i) {
    float* row = s + i * ld;
    if (is_full) {
      mask_row_outside(row, tile.n, 0, tile.n);
      continue;
    }
    const int64_t q_idx = tile.q_begin + i;
    const variant::KeyRange range = rules.position.keys(q_idx);
    const int64_t begin = range.begin - tile.k_begin;
    const int64_t end = range.end - tile.k_begin;
    mask_row_outside(row, tile.n, begin < 0 ? 0 : begin, end < tile.n ? end : tile.n);
    if (rules.list_first != nullptr) mask_row_by_list(rules, q_idx, tile.k_begin, tile.n, row);
  }
}

/// The same by all masks.
inline void apply_masks(const ScoreRules& rules, BlockPrograms& programs, const TileSpan& tile,
                        bool is_full, float* s, int64_t ld) {
  apply_position_masks(rules, tile, is_full, s, ld);
  if (!is_full && programs.mask.is_given()) mask_tile_by_program(programs.mask, tile, s, ld);
}

struct BroadcastWord {
  FLASHTILE_INLINE Vu operator()(uint32_t word) const { return broadcast_u(word); }
};

/// Room for the random bits of a row of n keys that starts anywhere in a group of 32.
inline constexpr int64_t kDropoutRow = kMaxBlockN + 32 + kLanes * 8;

/// The sixteen random bits of keys k_begin, k_begin + 1, ...: n of them from the result on, which
/// points into `room`.
inline const uint16_t* dropout_bits_row(const ScoreRules& rules, int64_t q_idx, int64_t k_begin,
                                        int64_t n, uint16_t (&room)[kDropoutRow]) {
  const variant::PhiloxKey key = {static_cast<uint32_t>(rules.dropout_seed),
                                  static_cast<uint32_t>(rules.dropout_seed >> 32)};
  constexpr int64_t kColumns = kLanes * 8;  // of one call: kLanes / 4 groups of 32
  const int64_t skipped = k_begin % 32;
  for (int64_t j = 0; j < n + skipped; j += kColumns) {
    const auto group = static_cast<uint32_t>((k_begin + j) / 32);
    Vu counter[4] = {broadcast_u(rules.dropout_offset), broadcast_u(rules.batch_head),
                     broadcast_u(static_cast<uint32_t>(q_idx)), iota_u() + broadcast_u(4 * group)};
    variant::philox4x32_7(counter, key, BroadcastWord{});
    auto* words = reinterpret_cast<uint32_t*>(room + j);
    for (int w = 0; w < 4; ++w) store_u_groups(words + 4 * w, 16, counter[w]);
  }
  return room + skipped;
}

/// p[j] = 0 where dropout drops; the gain is left to the caller.
inline void apply_dropout_row(const ScoreRules& rules, int64_t q_idx, int64_t k_begin, int64_t n,
                              float* p) {
  alignas(64) uint16_t room[kDropoutRow];
  const uint16_t* bits = dropout_bits_row(rules, q_idx, k_begin, n, room);
  const Vu threshold = broadcast_u(rules.dropout_threshold);
  for (int64_t j = 0; j < n; j += kLanes) {
    const Mf is_dropped = less_i32(load_u16(bits + j), threshold);
    store(p + j, select(is_dropped, zero(), load(p + j)));
  }
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
