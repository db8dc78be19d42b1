// SPDX-License-Identifier: Apache-2.0
#pragma once

// Forward attention of one query block of one head over packed key blocks.
//
//   for each run of key blocks the mask gives:
//     S = softmax_scale Q K^T          (m, n)    product 1
//     S = score rules, masks           -inf where a row does not see a key
//     P = exp(S - m), l += row sum of P; where S exceeds the reference m by too much,
//     m' = row max of S, f = exp(m - m'), and P, l, O are scaled to it
//     O = diag(f) O + P V              (m, dv)   product 2
//   out = O / l, lse = m + log l, with the sink in l
//
// Scores are kept in powers of two (S log2 e) where no rule needs them natural: `is_log2`.
// Scratch: Q (m, d), S (m, n), P (m, n) where it is bf16, O (m, dv), a copy of V for blocks with a
// NaN that nobody sees, row_max and factor (m each), row_sums and row_tops (m, lanes). S stays in
// L1, V and K blocks in L2, or where all of them do not fit, on their way to it from L3: what a
// product needs is fetched while the one before it runs. Online softmax: Milakov and Gimelshein
// 2018; tiling: FlashAttention, Dao et al. 2022.

#include "cpu/kernels/attention_lines.hpp"
#include "cpu/kernels/attention_operands.hpp"
#include "cpu/kernels/attention_scores.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kLn2 = 0.69314718055994531f;

/// Forms of a packed key block.
enum FwdForm { kFormK = 0, kFormV = 1 };

template <class Operands>
BlockLayout fwd_key_layout(int64_t block_n, int64_t head_dim, int64_t head_dim_v) {
  BlockLayout layout{};
  layout.ld[kFormK] = tile_ld(block_n);
  layout.ld[kFormV] = tile_ld(head_dim_v);
  Scratch scratch{nullptr};
  scratch.take_bytes(Operands::bytes(head_dim, layout.ld[kFormK]));
  layout.offset[kFormV] = scratch.used;
  scratch.take_bytes(Operands::bytes(block_n, layout.ld[kFormV]));
  layout.block_bytes = scratch.used;
  return layout;
}

template <class Operands>
void fwd_pack_keys(const PackRequest& r) {
  using Element = typename Operands::Element;
  const BlockLayout layout = fwd_key_layout<Operands>(r.block_rows, r.head_dim, r.head_dim_v);
  const RowSource k{r.first_rows, r.first_dtype, r.first_stride, r.first_scales};
  const RowSource v{r.second_rows, r.second_dtype, r.second_stride, r.second_scales};
  fetch_rows(k, r.num_rows, r.head_dim);
  fetch_rows(v, r.num_rows, r.head_dim_v);
  const auto at = [&](int form) {
    return reinterpret_cast<Element*>(r.destination + layout.offset[form]);
  };
  Operands::pack_right_transposed(k, r.num_rows, r.head_dim, at(kFormK), layout.ld[kFormK]);
  *r.has_nonfinite =
      Operands::pack_right(v, r.num_rows, r.head_dim_v, at(kFormV), layout.ld[kFormV]);
}

template <class Operands>
struct FwdState {
  using Element = typename Operands::Element;

  Element* q;
  Element* p;  ///< bf16 only
  Element* v_copy;
  float* s;
  float* o;
  float* row_max;   ///< the reference that exponentials are taken against
  float* row_sums;  ///< of exponentials, a number for each lane; their sum when all is done
  float* row_tops;  ///< largest scores so far, the same
  float* factor;    ///< of a row's earlier sums, where `is_rescaled`
  float* lines;     ///< of the tile at hand
  float unit;       ///< one unit of score in natural logarithms
  bool is_rescaled;
  BlockPrograms programs;
  int64_t q_ld, s_ld, o_ld;
};

template <class Operands>
FwdState<Operands> fwd_state(char* memory, int64_t block_m, int64_t block_n, int64_t head_dim,
                             int64_t head_dim_v, int64_t* bytes) {
  using Element = typename Operands::Element;
  FwdState<Operands> state{};
  Scratch scratch{memory};
  state.q_ld = tile_ld(head_dim);
  state.s_ld = tile_ld(block_n);
  state.o_ld = tile_ld(head_dim_v);
  state.q = reinterpret_cast<Element*>(scratch.take_bytes(Operands::bytes(block_m, state.q_ld)));
  state.p = reinterpret_cast<Element*>(scratch.take_bytes(Operands::bytes(block_m, state.s_ld)));
  state.v_copy =
      reinterpret_cast<Element*>(scratch.take_bytes(Operands::bytes(block_n, state.o_ld)));
  state.s = scratch.take<float>(block_m * state.s_ld);
  state.o = scratch.take<float>(block_m * state.o_ld);
  state.row_max = scratch.take<float>(padded(block_m));
  state.row_sums = scratch.take<float>(block_m * kLanes);
  state.row_tops = scratch.take<float>(block_m * kLanes);
  state.factor = scratch.take<float>(padded(block_m));
  state.lines = scratch.take<float>(lines_room(block_m, block_n));
  *bytes = scratch.used;
  return state;
}

/// The state of rows from `row` of the block on.
template <class Operands>
FwdState<Operands> rows_from(const FwdState<Operands>& state, int64_t row) {
  FwdState<Operands> part = state;
  part.q += row * state.q_ld;
  part.p += row * state.s_ld;
  part.s += row * state.s_ld;
  part.o += row * state.o_ld;
  part.row_max += row;
  part.row_sums += row * kLanes;
  part.row_tops += row * kLanes;
  part.factor += row;
  return part;
}

/// Has form `form` of a key block fetched while a product of a tile, (m, k) times (k, n), runs.
template <class Operands>
RowPrefetch fetch_keys(const FwdBlock& block, const TileSpan& tile, int64_t n_block, FwdForm form,
                       int64_t n, int64_t k) {
  constexpr int64_t kPeriod = 16;  // for four lines or so: more would fill the buffers of loads
  RowPrefetch prefetch;
  const PackedKeys& keys = *block.keys;
  const bool is_whole = tile.m == block.num_rows && tile.n == keys.block_n;
  if (!block.fetches_keys || !is_whole || n_block >= block.runs[block.num_runs - 1].end) {
    return prefetch;
  }
  const BlockLayout& layout = keys.layout;
  const int64_t end = form == kFormK ? layout.offset[kFormV] : layout.block_bytes;
  prefetch.add({keys.blocks + n_block * layout.block_bytes + layout.offset[form], 0, 1,
                end - layout.offset[form]});
  prefetch.period = kPeriod;
  const int64_t steps = Operands::bytes(k, 1) / 4;
  spread_prefetch(tiles_of(tile.m, n) * ((steps + kPeriod - 1) / kPeriod), &prefetch);
  return prefetch;
}

/// S of one tile: product, score rules, masks.
template <class Operands>
void compute_scores(const FwdBlock& block, const TileSpan& tile, bool is_full,
                    FwdState<Operands>& state, RowPrefetch* prefetch = nullptr) {
  const PackedKeys& keys = *block.keys;
  const ScoreRules& rules = *block.rules;
  const auto* k_block = reinterpret_cast<const typename Operands::Element*>(
      keys.blocks + tile.k_begin / keys.block_n * keys.layout.block_bytes +
      keys.layout.offset[kFormK]);
  const auto* k = Operands::from_column(k_block, tile.k_begin % keys.block_n);
  const float unit = rules.is_log2 ? kLog2e : 1.0f;
  GemmC product{
      .c = state.s, .ldc = state.s_ld, .alpha = rules.softmax_scale * unit, .prefetch = prefetch};
  const Lines lines = fill_lines(rules, state.programs.line, tile, state.lines, product);
  Operands::multiply(tile.m, tile.n, block.head_dim, state.q, state.q_ld, k, keys.layout.ld[kFormK],
                     product);
  if (!rules.is_plain) apply_scores(rules, state.programs, tile, is_full, state.s, state.s_ld);
  for (int64_t i = 0; lines.first_row != nullptr && i < tile.m; ++i) {
    add_line_row(lines, i, tile.n, state.s + i * state.s_ld);
  }
  apply_masks(rules, state.programs, tile, is_full, state.s, state.s_ld);
}

/// Where P of row i goes: over S, or beside it where P is bf16.
template <class Operands>
FLASHTILE_INLINE auto* weights_row(FwdState<Operands>& state, int64_t i) {
  if constexpr (sizeof(typename Operands::Element) == 4) {
    return state.s + i * state.s_ld;
  } else {
    return state.p + i * state.s_ld;
  }
}

/// Drops weights of one row of P.
template <class Operands>
void drop_row(const ScoreRules& rules, const TileSpan& tile, int64_t i, FwdState<Operands>& state) {
  auto* p = weights_row(state, i);
  float row[kMaxBlockN];
  for (int64_t j = 0; j < tile.n; j += kLanes) store(row + j, load(p + j));
  apply_dropout_row(rules, tile.q_begin + i, tile.k_begin, tile.n, row);
  for (int64_t j = 0; j < tile.n; j += kLanes) store(p + j, load(row + j));
}

/// Takes P of row i, against row_max[i], into its sums; those before it are multiplied by `factor`.
template <class Operands>
FLASHTILE_INLINE void add_row(int64_t i, float factor, const RowLanes& lanes,
                              FwdState<Operands>& state) {
  float* sums = state.row_sums + i * kLanes;
  float* tops = state.row_tops + i * kLanes;
  store(sums, fma(load(sums), broadcast(factor), lanes.sum));
  store(tops, max(lanes.top, load(tops)));
  state.factor[i] = factor;
  state.is_rescaled = state.is_rescaled || factor != 1.0f;
}

/// P = exp(S - reference) of one row against a new reference: `top`, its maximum so far.
template <class F, class Operands>
void softmax_row(const TileSpan& tile, int64_t i, float top, FwdState<Operands>& state) {
  const float* s = state.s + i * state.s_ld;
  const float old = state.row_max[i];
  const float reference = softmax_reference(top);
  const RowLanes lanes = exp_row_lanes<F>(s, tile.n, reference, weights_row(state, i));
  const float factor = old == -kInfinity ? 1.0f : __builtin_expf((old - reference) * state.unit);
  state.row_max[i] = top;
  add_row(i, factor, lanes, state);
}

/// P, and what earlier sums are multiplied by. A row keeps its reference while no score exceeds it
/// by more than kSlack: its exponentials then take one pass and nothing is rescaled. Larger weights
/// cost no precision, they are floats. A row that does exceed it is scaled to the new maximum.
/// Returns the rows done: not all where one exceeds it by so much that it has overflowed. From it
/// on S has to be worked out again for a pass that `looks_first` for such rows. Other rows come out
/// the same. Rows whose slope alone takes them beyond kSlack are looked at first, too.
template <class F, class Operands>
int64_t try_softmax(const FwdBlock& block, const TileSpan& tile, bool looks_first,
                    FwdState<Operands>& state) {
  constexpr float kSlack = 6;
  constexpr float kLimit = 80;
  for (int64_t i = 0; i < tile.m; ++i) {
    const float reference = state.row_max[i];
    const float* s = state.s + i * state.s_ld;
    const bool grows = has_growth(*block.rules, tile, i, block.keys->block_n, kSlack);
    if (reference == -kInfinity || grows || looks_first) {
      const float top = row_max_of(s, tile.n, reference);
      if (reference == -kInfinity || top > reference + (grows ? kSlack : kLimit)) {
        softmax_row<F>(tile, i, top, state);
        continue;
      }
    }
    auto* p = weights_row(state, i);
    RowLanes lanes = exp_row_lanes<F>(s, tile.n, reference, p);
    float factor = 1;
    if (any(lanes.top > broadcast(reference + kSlack))) {
      const float top = reduce_max(lanes.top);
      if (top > reference + kLimit) return i;
      factor = __builtin_expf((reference - top) * state.unit);
      for (int64_t j = 0; j < tile.n; j += kLanes) {
        store(p + j, load(p + j) * broadcast(factor));
      }
      lanes.sum = lanes.sum * broadcast(factor);
      state.row_max[i] = top;
    }
    add_row(i, factor, lanes, state);
  }
  return tile.m;
}

/// The softmax of a tile. Leaves P, row_max, row_sums, and factors where `is_rescaled`.
template <class F, class Operands>
void online_softmax(const FwdBlock& block, const TileSpan& tile, bool is_full,
                    FwdState<Operands>& state) {
  state.is_rescaled = false;
  const int64_t done = try_softmax<F>(block, tile, false, state);
  if (done < tile.m) {
    FwdState<Operands> rest = rows_from(state, done);
    const TileSpan span{tile.q_begin + done, tile.m - done, tile.k_begin, tile.n};
    compute_scores(block, span, is_full, rest);
    try_softmax<F>(block, span, true, rest);
    state.is_rescaled = state.is_rescaled || rest.is_rescaled;
  }
  if (!block.rules->has_dropout) return;
  for (int64_t i = 0; i < tile.m; ++i) drop_row(*block.rules, tile, i, state);
}

/// V of a block that holds a NaN or infinity, with the rows zeroed that no row of this tile sees:
/// what is masked for all must not reach a result as 0 * NaN. Looks at S before the exponential.
template <class Operands>
const typename Operands::Element* visible_values(const FwdBlock& block, const TileSpan& tile,
                                                 const typename Operands::Element* v,
                                                 FwdState<Operands>& state) {
  const PackedKeys& keys = *block.keys;
  __builtin_memcpy(state.v_copy, v,
                   static_cast<size_t>(Operands::bytes(keys.block_n, keys.layout.ld[kFormV])));
  const int64_t first = tile.k_begin % keys.block_n;
  for (int64_t j = 0; j < Operands::rows_read(tile.n); ++j) {
    bool is_seen = false;
    for (int64_t i = 0; i < tile.m && j < tile.n && !is_seen; ++i) {
      is_seen = state.s[i * state.s_ld + j] != -kInfinity;
    }
    if (is_seen) continue;
    Operands::clear_right_row(state.v_copy, keys.layout.ld[kFormV], first + j, block.head_dim_v);
  }
  return state.v_copy;
}

/// One key block: both products.
template <class F, class Operands>
void fwd_tile(const FwdBlock& block, const TileSpan& tile, bool is_full, bool is_first,
              FwdState<Operands>& state) {
  const PackedKeys& keys = *block.keys;
  const int64_t n_block = tile.k_begin / keys.block_n;
  RowPrefetch values = fetch_keys<Operands>(block, tile, n_block, kFormV, tile.n, block.head_dim);
  compute_scores(block, tile, is_full, state, &values);
  const auto* v = reinterpret_cast<const typename Operands::Element*>(
      keys.blocks + n_block * keys.layout.block_bytes + keys.layout.offset[kFormV]);
  // A bias hides keys (-inf) in tiles that are full by their masks.
  const bool hides_keys = !is_full || block.rules->bias != nullptr;
  if (hides_keys && keys.v_has_nonfinite[n_block] != 0) {
    v = visible_values<Operands>(block, tile, v, state);
  }
  online_softmax<F>(block, tile, is_full, state);
  v = Operands::from_row(v, tile.k_begin % keys.block_n, keys.layout.ld[kFormV]);
  const bool is_scaled = !is_first && state.is_rescaled;
  RowPrefetch next =
      fetch_keys<Operands>(block, tile, n_block + 1, kFormK, block.head_dim_v, tile.n);
  Operands::multiply(tile.m, block.head_dim_v, tile.n, weights_row(state, 0), state.s_ld, v,
                     keys.layout.ld[kFormV],
                     {.c = state.o,
                      .ldc = state.o_ld,
                      .accumulate = !is_first,
                      .row_scale = is_scaled ? state.factor : nullptr,
                      .prefetch = &next});
}

/// The part of a tile's keys that its rows may see, by position, from a multiple of
/// kTrimKeys on.
FLASHTILE_INLINE TileSpan trimmed(const FwdBlock& block, TileSpan tile) {
  const variant::PositionMask& position = block.rules->position;
  const int64_t begin = position.keys(tile.q_begin).begin / kTrimKeys * kTrimKeys;
  const int64_t end = position.keys(tile.q_begin + tile.m - 1).end;
  const int64_t tile_end = tile.k_begin + tile.n;
  const int64_t first = begin > tile.k_begin ? begin : tile.k_begin;
  const int64_t last = end < tile_end ? end : tile_end;
  return {tile.q_begin, tile.m, first, last - first};
}

inline constexpr int64_t kMaxParts = 4;  ///< of kPartRows: a block has at most 96 rows

/// True where rows of a block see different ranges of keys.
FLASHTILE_INLINE bool has_diagonal(const FwdBlock& block) {
  const variant::PositionMask& position = block.rules->position;
  const variant::KeyRange first = position.keys(block.q_begin);
  const variant::KeyRange last = position.keys(block.q_begin + block.num_rows - 1);
  return first.begin != last.begin || first.end != last.end;
}

/// Calls body(tile, is_full) for each key block of the runs.
template <class Body>
FLASHTILE_INLINE void for_each_tile(const FwdBlock& block, const Body& body) {
  const PackedKeys& keys = *block.keys;
  for (int64_t r = 0; r < block.num_runs; ++r) {
    const bool is_full = block.runs[r].is_full;
    for (int64_t n_block = block.runs[r].begin; n_block < block.runs[r].end; ++n_block) {
      const int64_t k_begin = n_block * keys.block_n;
      const int64_t left = keys.seqlen_k - k_begin;
      const TileSpan tile{block.q_begin, block.num_rows, k_begin,
                          left < keys.block_n ? left : keys.block_n};
      body(tile, is_full);
    }
  }
}

/// out = O / sum and lse, the sink included. Leaves lse in the scores' units in row_max.
template <class F, class Operands>
void fwd_finish(const FwdBlock& block, FwdState<Operands>& state) {
  const ScoreRules& rules = *block.rules;
  const float unit = state.unit;
  const float sink = block.sink / unit;
  const float gain = rules.has_dropout ? rules.dropout_gain : 1.0f;
  float highest = -kInfinity;
  for (int64_t i = 0; i < block.num_rows; ++i) {
    const float row_max = state.row_max[i];
    const float row_sum = reduce_add(load(state.row_sums + i * kLanes));
    const float row_top = reduce_max(load(state.row_tops + i * kLanes));
    float sum = row_sum;
    float scale = 1;
    float top = row_max;
    if (row_top > highest) highest = row_top;
    if (block.sink != -kInfinity) {
      top = sink > row_max ? sink : row_max;
      scale = __builtin_expf((row_max - top) * unit);
      sum = sum * scale + __builtin_expf((sink - top) * unit);
    }
    // Nothing was seen: whatever a product left there, the row is 0. (A NaN sum is no empty row.)
    if (row_sum == 0) fill_row(state.o + i * state.o_ld, block.head_dim_v, 0);
    const bool is_empty = sum == 0;
    state.factor[i] = is_empty ? 0 : scale * gain / sum;
    state.row_max[i] = is_empty ? -kInfinity : top + __builtin_logf(sum) / unit;
    if (block.lse != nullptr) block.lse[i] = state.row_max[i] * unit;
  }
  *block.max_logit = highest * unit;
  const RowTarget target{block.out_rows, block.out_dtype, block.out_stride};
  unpack_rows(state.o, state.o_ld, block.num_rows, block.head_dim_v, target, 1.0f, state.factor);
}

/// The debug output: weights, worked out again now that lse is known.
template <class F, class Operands>
void fwd_weights(const FwdBlock& block, FwdState<Operands>& state) {
  const ScoreRules& rules = *block.rules;
  for_each_tile(block, [&](const TileSpan& whole, bool is_full) {
    const TileSpan tile = is_full ? whole : trimmed(block, whole);
    compute_scores(block, tile, is_full, state);
    for (int64_t i = 0; i < tile.m; ++i) {
      float* s = state.s + i * state.s_ld;
      exp_row<F>(s, tile.n, softmax_reference(state.row_max[i]), s);
      if (rules.has_dropout) {
        apply_dropout_row(rules, tile.q_begin + i, tile.k_begin, tile.n, s);
        scale_row(s, tile.n, rules.dropout_gain);
      }
      char* row = block.weights + (tile.q_begin + i) * block.weights_row_stride;
      for (int64_t j = 0; j < tile.n; ++j) {
        *reinterpret_cast<float*>(row + (tile.k_begin + j) * block.weights_key_stride) = s[j];
      }
    }
  });
}

/// Which parts of a block's rows have sums, from an earlier tile. Some may begin later than others.
struct BegunParts {
  int64_t part_rows;
  bool flags[static_cast<size_t>(kMaxParts)] = {};

  /// Readies O of rows [row, row + m) for a tile. Returns true where none of them has sums yet, and
  /// the tile's products are stored instead of added.
  template <class Operands>
  bool ready(int64_t row, int64_t m, FwdState<Operands>& state) {
    const int64_t first = row / part_rows;
    const int64_t last = (row + m - 1) / part_rows;
    bool is_first = true;
    for (int64_t part = first; part <= last; ++part) is_first = is_first && !flags[part];
    for (int64_t part = first; part <= last; ++part) {
      const int64_t begin = part * part_rows;
      const int64_t end = begin + part_rows < row + m ? begin + part_rows : row + m;
      if (!is_first && !flags[part]) {
        fill_row(state.o + begin * state.o_ld, (end - begin) * state.o_ld, 0);
      }
      flags[part] = true;
    }
    return is_first;
  }
};

template <class F, class Operands>
void fwd_block_of(const FwdBlock& block) {
  int64_t bytes = 0;
  FwdState<Operands> state = fwd_state<Operands>(block.scratch, block.num_rows, block.keys->block_n,
                                                 block.head_dim, block.head_dim_v, &bytes);
  Scratch scratch{block.program_scratch};
  state.programs = open_programs(*block.rules, scratch);
  const RowSource q{block.q_rows, block.q_dtype, block.q_stride};
  fetch_rows(q, block.num_rows, block.head_dim);
  fetch_rows({block.out_rows, block.out_dtype, block.out_stride}, block.num_rows, block.head_dim_v);
  Operands::pack_left(q, block.num_rows, block.head_dim, state.q, state.q_ld);
  fill_row(state.row_max, block.num_rows, -kInfinity);
  fill_row(state.row_sums, block.num_rows * kLanes, 0);
  fill_row(state.row_tops, block.num_rows * kLanes, -kInfinity);
  state.unit = block.rules->is_log2 ? kLn2 : 1.0f;
  BegunParts begun{has_diagonal(block) ? kPartRows : block.num_rows};
  for_each_tile(block, [&](const TileSpan& tile, bool is_full) {
    const auto attend = [&](const TileSpan& span, bool is_span_full) {
      const int64_t row = span.q_begin - block.q_begin;
      const bool is_first = begun.ready(row, span.m, state);
      FwdState<Operands> rows = rows_from(state, row);
      fwd_tile<F, Operands>(block, span, is_span_full, is_first, rows);
    };
    if (is_full) return attend(tile, true);
    for_each_part(
        *block.rules, tile, begun.part_rows,
        [&](const TileSpan& part) { return trimmed(block, part); }, attend);
  });
  fwd_finish<F, Operands>(block, state);
  if (block.weights != nullptr) fwd_weights<F, Operands>(block, state);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
