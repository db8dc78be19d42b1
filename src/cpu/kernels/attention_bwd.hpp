// SPDX-License-Identifier: Apache-2.0
#pragma once

// Backward attention of one key block of one head against its query blocks.
//
//   for each query block that the mask gives:
//     S  = softmax_scale Q K^T, score rules, masks     (m, n)   product 1
//     P  = exp(S - lse)
//     dP = dO V^T, dropped as P was                    (m, n)   product 2
//     dS = P (dP - delta)          delta = rowsum(dO O) - dlse, so that lse has a gradient too
//     bias, slopes and aux tensors take their part of dS; then the score rules' derivative
//     (what a line of pairs shares is summed over the line first)
//     dV += P^T dO                                     (n, dv)  product 3
//     dK += softmax_scale dS^T Q                       (n, d)   product 4
//     dQ += softmax_scale dS K                         (m, d)   product 5
//
// Where delta is wanted as rowsum(P dP), a pass over the same blocks ends there.
// With a user score, but a line, a key block is one strip of its programs: block_n is at most
// kStrip.
// The sums are float32 and belong to one task, so their order is fixed and nothing is atomic.
// Scratch: S, dP, derivative (m, n) float32, and P and dS as operands where those are bf16.

#include "cpu/kernels/attention_lines.hpp"
#include "cpu/kernels/attention_operands.hpp"
#include "cpu/kernels/attention_scores.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Forms of a packed query block: Q and dO to the left of a product and to its right.
enum QueryForm { kFormQ = 0, kFormQRight = 1, kFormDout = 2, kFormDoutRight = 3 };
/// Forms of a packed key block: K transposed (S), K by rows (dQ), V transposed (dP).
enum KeyForm { kFormKTransposed = 0, kFormKRight = 1, kFormVTransposed = 2 };

template <class Operands>
inline constexpr bool kIsFloat = sizeof(typename Operands::Element) == 4;

template <class Operands>
BlockLayout bwd_query_layout(int64_t block_m, int64_t head_dim, int64_t head_dim_v) {
  BlockLayout layout{};
  Scratch scratch{nullptr};
  const auto place = [&](int form, int64_t dim) {
    layout.ld[form] = tile_ld(dim);
    layout.offset[form] = scratch.used;
    scratch.take_bytes(Operands::bytes(block_m, layout.ld[form]));
  };
  const auto share = [&](int form, int other) {
    layout.ld[form] = layout.ld[other];
    layout.offset[form] = layout.offset[other];
  };
  place(kFormQ, head_dim);
  place(kFormDout, head_dim_v);
  if constexpr (kIsFloat<Operands>) {
    share(kFormQRight, kFormQ);  // rows of floats serve on either side
    share(kFormDoutRight, kFormDout);
  } else {
    place(kFormQRight, head_dim);
    place(kFormDoutRight, head_dim_v);
  }
  layout.block_bytes = scratch.used;
  return layout;
}

template <class Operands>
BlockLayout bwd_key_layout(int64_t block_n, int64_t head_dim, int64_t head_dim_v) {
  BlockLayout layout{};
  Scratch scratch{nullptr};
  const auto place = [&](int form, int64_t rows, int64_t ld) {
    layout.ld[form] = ld;
    layout.offset[form] = scratch.used;
    scratch.take_bytes(Operands::bytes(rows, ld));
  };
  place(kFormKTransposed, head_dim, tile_ld(block_n));
  place(kFormKRight, block_n, tile_ld(head_dim));
  place(kFormVTransposed, head_dim_v, tile_ld(block_n));
  layout.block_bytes = scratch.used;
  return layout;
}

template <class Operands>
void bwd_pack_queries(const PackRequest& r) {
  using Element = typename Operands::Element;
  const BlockLayout layout = bwd_query_layout<Operands>(r.block_rows, r.head_dim, r.head_dim_v);
  const RowSource q{r.first_rows, r.first_dtype, r.first_stride};
  const RowSource dout{r.second_rows, r.second_dtype, r.second_stride};
  fetch_rows(q, r.num_rows, r.head_dim);
  fetch_rows(dout, r.num_rows, r.head_dim_v);
  const auto at = [&](int form) {
    return reinterpret_cast<Element*>(r.destination + layout.offset[form]);
  };
  Operands::pack_left(q, r.num_rows, r.head_dim, at(kFormQ), layout.ld[kFormQ]);
  Operands::pack_left(dout, r.num_rows, r.head_dim_v, at(kFormDout), layout.ld[kFormDout]);
  if constexpr (!kIsFloat<Operands>) {
    Operands::pack_right(q, r.num_rows, r.head_dim, at(kFormQRight), layout.ld[kFormQRight]);
    Operands::pack_right(dout, r.num_rows, r.head_dim_v, at(kFormDoutRight),
                         layout.ld[kFormDoutRight]);
  }
}

template <class Operands>
void bwd_pack_keys(const PackRequest& r) {
  using Element = typename Operands::Element;
  const BlockLayout layout = bwd_key_layout<Operands>(r.block_rows, r.head_dim, r.head_dim_v);
  const RowSource k{r.first_rows, r.first_dtype, r.first_stride};
  const RowSource v{r.second_rows, r.second_dtype, r.second_stride};
  fetch_rows(k, r.num_rows, r.head_dim);
  fetch_rows(v, r.num_rows, r.head_dim_v);
  const auto at = [&](int form) {
    return reinterpret_cast<Element*>(r.destination + layout.offset[form]);
  };
  Operands::pack_right_transposed(k, r.num_rows, r.head_dim, at(kFormKTransposed),
                                  layout.ld[kFormKTransposed]);
  *r.has_nonfinite =
      Operands::pack_right(k, r.num_rows, r.head_dim, at(kFormKRight), layout.ld[kFormKRight]);
  Operands::pack_right_transposed(v, r.num_rows, r.head_dim_v, at(kFormVTransposed),
                                  layout.ld[kFormVTransposed]);
}

template <class Operands>
struct BwdState {
  using Element = typename Operands::Element;

  float* s;           ///< scores, then P as dropout leaves it
  float* dp;          ///< dP, then dS
  float* derivative;  ///< of the score rules, one row
  Element* p;         ///< P and dS as operands; the float tiles themselves where those serve
  Element* ds_right;
  Element* ds_left;
  Element* k_copy;
  BlockPrograms programs;
  float* line_values;  ///< of the tile at hand
  float* line_sums;    ///< of dS
  Lines lines;         ///< what rows of the tile still lack
  int64_t ld;
};

template <class Operands>
BwdState<Operands> bwd_state(char* memory, int64_t block_m, int64_t block_n, int64_t head_dim,
                             int64_t* bytes) {
  using Element = typename Operands::Element;
  BwdState<Operands> state{};
  Scratch scratch{memory};
  state.ld = tile_ld(block_n);
  state.s = scratch.take<float>(block_m * state.ld);
  state.dp = scratch.take<float>(block_m * state.ld);
  state.derivative = scratch.take<float>(state.ld);
  const auto operand = [&](int64_t rows, int64_t ld) {
    return reinterpret_cast<Element*>(scratch.take_bytes(Operands::bytes(rows, ld)));
  };
  if constexpr (kIsFloat<Operands>) {
    state.p = state.s;
    state.ds_right = state.dp;
    state.ds_left = state.dp;
  } else {
    state.p = operand(block_m, state.ld);
    state.ds_right = operand(block_m, state.ld);
    state.ds_left = operand(block_m, state.ld);
  }
  state.k_copy = operand(block_n, tile_ld(head_dim));
  state.line_values = scratch.take<float>(lines_room(block_m, block_n));
  state.line_sums = scratch.take<float>(lines_room(block_m, block_n));
  *bytes = scratch.used;
  return state;
}

/// Scores of one row with the derivative of its rules (softcap, user score), before the masks.
template <class Operands>
void scores_with_derivative(const BwdBlock& block, const TileSpan& tile, bool is_full, int64_t i,
                            BwdState<Operands>& state) {
  const ScoreRules& rules = *block.rules;
  float* s = state.s + i * state.ld;
  const int64_t q_idx = tile.q_begin + i;
  if (rules.softcap > 0) {
    softcap_row(rules.softcap, s, tile.n);
    const Vf inverse = broadcast(1.0f / rules.softcap);
    for (int64_t j = 0; j < tile.n; j += kLanes) {
      const Vf t = load(s + j) * inverse;
      store(state.derivative + j, fnma(t, t, broadcast(1.0f)));
    }
  }
  Strips& score = state.programs.score_for(is_full);
  if (score.is_given()) {
    float input[kStrip];
    __builtin_memcpy(input, s, static_cast<size_t>(tile.n) * sizeof(float));
    strip_row(score.machine, q_idx);
    strip_run(score.machine, input);
    const float* value = strip_floats(score.machine, 0);
    const float* derivative = strip_floats(score.machine, 1);
    const bool has_softcap = rules.softcap > 0;
    for (int64_t j = 0; j < tile.n; ++j) {
      s[j] = value[j];
      state.derivative[j] = has_softcap ? state.derivative[j] * derivative[j] : derivative[j];
    }
  }
  if (rules.bias != nullptr) add_bias_row(rules, q_idx, tile.k_begin, tile.n, s);
  add_line_row(state.lines, i, tile.n, s);
}

/// Hands dS of one row to the aux tensors that the user score has read; the program's outputs are
/// those of this row. A pair without gradient is passed over, whatever its derivative.
inline void add_aux_gradients(const StripMachine& machine, const AuxSum* sites, int64_t num_sites,
                              int64_t n, const float* ds) {
  for (int64_t site = 0; site < num_sites; ++site) {
    const auto output = static_cast<int>(2 + 3 * site);
    const uint8_t* is_read = strip_bools(machine, output);
    const float* derivative = strip_floats(machine, output + 1);
    const int64_t* element = strip_ints(machine, output + 2);
    double row_sum = 0;
    int64_t row_element = -1;
    for (int64_t j = 0; j < n; ++j) {
      if (ds[j] == 0 || is_read[j] == 0) continue;
      if (element[j] < 0 || element[j] >= sites[site].size) continue;  // reported as an error
      const float gradient = ds[j] * derivative[j];
      if (sites[site].is_uniform) {
        row_sum += static_cast<double>(gradient);
        row_element = element[j];
      } else {
        sites[site].sums[element[j]] += static_cast<double>(gradient);
      }
    }
    if (row_element >= 0) sites[site].sums[row_element] += row_sum;
  }
}

/// Hands dS of one row to the tensors that scores read.
inline void add_score_gradients(const BwdBlock& block, const TileSpan& tile, int64_t i,
                                const float* ds) {
  const ScoreGradients& gradients = *block.gradients;
  const int64_t q_idx = tile.q_begin + i;
  if (gradients.bias != nullptr) {
    char* row = gradients.bias + q_idx * gradients.bias_row_stride +
                tile.k_begin * gradients.bias_key_stride;
    void* rows[1] = {row};
    const int64_t size = gradients.bias_dtype == DType::kF32 ? 4 : 2;
    unpack_rows(ds, tile.n, 1, tile.n,
                {rows, gradients.bias_dtype, gradients.bias_key_stride / size});
  }
  if (gradients.bias_columns != nullptr) {
    double* columns = gradients.bias_columns + (tile.k_begin - block.k_begin);
    for (int64_t j = 0; j < tile.n; ++j) columns[j] += static_cast<double>(ds[j]);
  }
  if (gradients.bias_tile != nullptr) {
    double* row = gradients.bias_tile + q_idx % block.block_m * gradients.bias_tile_ld +
                  (tile.k_begin - block.k_begin);
    for (int64_t j = 0; j < tile.n; ++j) row[j] += static_cast<double>(ds[j]);
  }
}

FLASHTILE_INLINE bool wants_line_sums(const BwdBlock& block) {
  const ScoreGradients* gradients = block.gradients;
  return gradients != nullptr && (gradients->alibi != nullptr ||
                                  (gradients->num_aux > 0 && block.rules->line.program != nullptr));
}

/// True where score rules have a derivative besides 1, which dS is multiplied by row by row.
template <class Operands>
FLASHTILE_INLINE bool has_derivative(const BwdBlock& block, const BwdState<Operands>& state) {
  return block.rules->softcap > 0 || state.programs.score.is_given();
}

/// Hands dS of a tile to the slope and to the aux tensors that its lines read. The program is run
/// again: its registers hold one strip.
template <class Operands>
void add_line_gradients(const BwdBlock& block, const TileSpan& tile, BwdState<Operands>& state) {
  const ScoreGradients& gradients = *block.gradients;
  const int64_t shift = shift_of(*block.rules);
  if (!has_derivative(block, state)) {
    sum_lines(state.dp, state.ld, tile, shift, state.line_sums);
  }
  if (gradients.alibi != nullptr) {
    const Distances distances(*block.rules, tile.q_begin + tile.m - 1, tile.k_begin);
    const int64_t count = num_lines(tile, shift);
    Vf sum = zero();
    for (int64_t x = 0; x < count; x += kLanes) {
      sum = fnma(distances.at(x), load_partial(state.line_sums + x, count - x), sum);
    }
    *gradients.alibi += static_cast<double>(reduce_add(sum));
  }
  Strips& line = state.programs.line;
  if (!line.is_given() || gradients.num_aux == 0) return;
  for_each_line_strip(line, tile, shift, [&](int64_t first, int64_t count) {
    add_aux_gradients(line.machine, gradients.aux, gradients.num_aux, count,
                      state.line_sums + first);
  });
}

/// x[j] = 0 for dropped keys and x[j] * gain for the others, in two rows at once.
inline void drop_rows(const ScoreRules& rules, const uint16_t* bits, int64_t n, float* p,
                      float* dp) {
  const Vu threshold = broadcast_u(rules.dropout_threshold);
  const Vf gain = broadcast(rules.dropout_gain);
  for (int64_t j = 0; j < n; j += kLanes) {
    const Mf is_dropped = less_i32(load_u16(bits + j), threshold);
    store(p + j, select(is_dropped, zero(), load(p + j) * gain));
    store(dp + j, select(is_dropped, zero(), load(dp + j) * gain));
  }
}

/// Scores of one row -> P, in place; dP as dropout leaves it. Returns P before dropout, which lies
/// in `kept` where there is dropout.
template <class F>
const float* weights_row(const BwdBlock& block, const TileSpan& tile, int64_t q_idx, float* s,
                         float* dp, float (&kept)[kMaxBlockN]) {
  const ScoreRules& rules = *block.rules;
  const float lse = block.lse[q_idx] * (rules.is_log2 ? kLog2e : 1.0f);
  const float sum = exp_row<F>(s, tile.n, softmax_reference(lse), s);
  if (block.weight_sums != nullptr) {
    block.weight_sums[q_idx] += static_cast<double>(sum);
    return s;
  }
  if (block.factors != nullptr) scale_row(s, tile.n, block.factors[q_idx]);
  if (!rules.has_dropout) return s;
  // dS needs P before dropout; dV needs it after.
  alignas(64) uint16_t room[kDropoutRow];
  const uint16_t* bits = dropout_bits_row(rules, q_idx, tile.k_begin, tile.n, room);
  __builtin_memcpy(kept, s, static_cast<size_t>(padded(tile.n)) * sizeof(float));
  drop_rows(rules, bits, tile.n, s, dp);
  return kept;
}

/// True where a row goes from S and dP to P and dS by the softmax alone, and nobody wants anything
/// of it; lines see the tile.
template <class Operands>
FLASHTILE_INLINE bool is_plain_row(const BwdBlock& block, const BwdState<Operands>& state) {
  const ScoreGradients* gradients = block.gradients;
  const bool wants_rows =
      gradients != nullptr && (gradients->bias != nullptr || gradients->bias_columns != nullptr ||
                               gradients->bias_tile != nullptr);
  return block.weight_sums == nullptr && block.delta_sums == nullptr && block.factors == nullptr &&
         !block.rules->has_dropout && !wants_rows && !has_derivative(block, state);
}

/// One row of P, dP -> dS. On return s holds P as V was multiplied by it, dp holds dS times the
/// score rules' derivative.
template <class F, class Operands>
void bwd_row(const BwdBlock& block, const TileSpan& tile, bool is_full, int64_t i,
             BwdState<Operands>& state) {
  float* dp = state.dp + i * state.ld;
  const int64_t q_idx = tile.q_begin + i;
  if (is_plain_row(block, state)) {
    const float lse = block.lse[q_idx] * (block.rules->is_log2 ? kLog2e : 1.0f);
    exp_grad_row<F>(state.s + i * state.ld, dp, tile.n, softmax_reference(lse), block.delta[q_idx]);
    return;
  }
  float kept[kMaxBlockN];
  const float* p = weights_row<F>(block, tile, q_idx, state.s + i * state.ld, dp, kept);
  if (block.weight_sums != nullptr) return;
  if (block.delta_sums != nullptr) {
    block.delta_sums[q_idx] += weighted_sum_row(p, dp, tile.n);
    return;
  }
  softmax_grad_row(p, dp, tile.n, block.delta[q_idx], dp);
  const Strips& score = state.programs.score_for(is_full);
  if (block.gradients != nullptr) {
    add_score_gradients(block, tile, i, dp);
    const ScoreGradients& g = *block.gradients;
    if (score.is_given()) {
      add_aux_gradients(score.machine, is_full ? g.aux : g.guarded_aux,
                        is_full ? g.num_aux : g.num_guarded_aux, tile.n, dp);
    }
  }
  if (!has_derivative(block, state)) return;
  if (wants_line_sums(block)) {
    sum_line_row(dp, i, tile, shift_of(*block.rules), state.line_sums);
  }
  for (int64_t j = 0; j < tile.n; j += kLanes) {
    // A key that is not seen may have any derivative, NaN included.
    const Vf x = load(dp + j);
    store(dp + j, select(x == zero(), zero(), x * load(state.derivative + j)));
  }
}

/// The float tiles as operands of products 3, 4 and 5.
template <class Operands>
void convert_tiles(const TileSpan& tile, BwdState<Operands>& state) {
  if constexpr (!kIsFloat<Operands>) {
    const void* p_rows[kMaxBlockN];
    const void* ds_rows[kMaxBlockN];
    for (int64_t i = 0; i < tile.m; ++i) {
      p_rows[i] = state.s + i * state.ld;
      ds_rows[i] = state.dp + i * state.ld;
    }
    Operands::pack_right({p_rows, DType::kF32, 1}, tile.m, tile.n, state.p, state.ld);
    Operands::pack_right({ds_rows, DType::kF32, 1}, tile.m, tile.n, state.ds_right, state.ld);
    Operands::pack_left({ds_rows, DType::kF32, 1}, tile.m, tile.n, state.ds_left, state.ld);
  } else {
    static_cast<void>(tile);
    static_cast<void>(state);
  }
}

/// K by rows with the rows zeroed that no row of the tile sees; see visible_values.
template <class Operands>
const typename Operands::Element* visible_keys(const BwdBlock& block, const TileSpan& tile,
                                               const uint8_t* is_seen,
                                               const typename Operands::Element* k,
                                               BwdState<Operands>& state) {
  const int64_t ld = block.k_layout.ld[kFormKRight];
  __builtin_memcpy(state.k_copy, k, static_cast<size_t>(Operands::bytes(block.block_n, ld)));
  for (int64_t j = 0; j < Operands::rows_read(tile.n); ++j) {
    if (is_seen[j] != 0) continue;
    Operands::clear_right_row(state.k_copy, ld, tile.k_begin - block.k_begin + j, block.head_dim);
  }
  return state.k_copy;
}

/// Has the query block behind a tile, and its dQ, fetched while the five products of the tile run.
template <class Operands>
RowPrefetch fetch_queries(const BwdBlock& block, const TileSpan& tile, int64_t m_block) {
  constexpr int64_t kPeriod = 16;  // for two lines or so: more would fill the buffers of loads
  RowPrefetch prefetch;
  if (!block.fetches_queries || m_block >= block.runs[block.num_runs - 1].end) return prefetch;
  const int64_t q_begin = m_block * block.block_m;
  const int64_t left = block.seqlen_q - q_begin;
  const int64_t rows = left < block.block_m ? left : block.block_m;
  prefetch.add(
      {block.q_blocks + m_block * block.q_layout.block_bytes, 0, 1, block.q_layout.block_bytes});
  prefetch.add({reinterpret_cast<const char*>(block.dq + q_begin * block.dq_ld), 0, 1,
                rows * block.dq_ld * 4});
  const auto periods = [&](int64_t m, int64_t n, int64_t k) {
    return tiles_of(m, n) * ((Operands::bytes(k, 1) / 4 + kPeriod - 1) / kPeriod);
  };
  prefetch.period = kPeriod;
  spread_prefetch(
      periods(tile.m, tile.n, block.head_dim) + periods(tile.m, tile.n, block.head_dim_v) +
          periods(tile.n, block.head_dim_v, tile.m) + periods(tile.n, block.head_dim, tile.m) +
          periods(tile.m, block.head_dim, tile.n),
      &prefetch);
  return prefetch;
}

/// One query block against the key block.
template <class F, class Operands>
void bwd_tile(const BwdBlock& block, const TileSpan& tile, bool is_full, BwdState<Operands>& state,
              RowPrefetch* prefetch = nullptr) {
  using Element = typename Operands::Element;
  const ScoreRules& rules = *block.rules;
  const char* queries = block.q_blocks + tile.q_begin / block.block_m * block.q_layout.block_bytes;
  const int64_t row = tile.q_begin % block.block_m;
  const int64_t col = tile.k_begin - block.k_begin;
  const auto q_at = [&](QueryForm form) {
    const auto* rows = reinterpret_cast<const Element*>(queries + block.q_layout.offset[form]);
    return rows + row * block.q_layout.ld[form];
  };
  const auto k_at = [&](KeyForm form) {
    return reinterpret_cast<const Element*>(block.k_block + block.k_layout.offset[form]);
  };
  const BlockLayout& ql = block.q_layout;
  const BlockLayout& kl = block.k_layout;
  const float unit = rules.is_log2 ? kLog2e : 1.0f;
  GemmC product{
      .c = state.s, .ldc = state.ld, .alpha = rules.softmax_scale * unit, .prefetch = prefetch};
  state.lines = fill_lines(rules, state.programs.line, tile, state.line_values, product);
  Operands::multiply(tile.m, tile.n, block.head_dim, q_at(kFormQ), ql.ld[kFormQ],
                     Operands::from_column(k_at(kFormKTransposed), col), kl.ld[kFormKTransposed],
                     product);
  if (block.weight_sums == nullptr) {
    Operands::multiply(tile.m, tile.n, block.head_dim_v, q_at(kFormDout), ql.ld[kFormDout],
                       Operands::from_column(k_at(kFormVTransposed), col), kl.ld[kFormVTransposed],
                       {.c = state.dp, .ldc = state.ld, .prefetch = prefetch});
  }
  Strips& score = state.programs.score_for(is_full);
  if (score.is_given()) strip_columns(score.machine, tile.k_begin, tile.n);
  const bool hides_keys = !is_full || rules.bias != nullptr;  // a bias of -inf hides too
  const bool looks_for_unseen = hides_keys && block.k_has_nonfinite;
  uint8_t is_seen[kMaxBlockN] = {};
  if (wants_line_sums(block)) fill_row(state.line_sums, num_lines(tile, shift_of(rules)), 0);
  for (int64_t i = 0; i < tile.m; ++i) {
    if (!rules.is_plain) scores_with_derivative(block, tile, is_full, i, state);
    const TileSpan one_row{tile.q_begin + i, 1, tile.k_begin, tile.n};
    apply_masks(rules, state.programs, one_row, is_full, state.s + i * state.ld, state.ld);
    if (looks_for_unseen) {
      const float* s = state.s + i * state.ld;
      for (int64_t j = 0; j < tile.n; ++j) {
        is_seen[j] = static_cast<uint8_t>(is_seen[j] | (s[j] != -__builtin_inff()));
      }
    }
    bwd_row<F>(block, tile, is_full, i, state);
  }
  if (score.is_given()) report_error(score);
  if (wants_line_sums(block)) add_line_gradients(block, tile, state);
  if (block.dq == nullptr) return;
  convert_tiles(tile, state);
  const Element* k = k_at(kFormKRight);
  if (looks_for_unseen) k = visible_keys(block, tile, is_seen, k, state);
  k = Operands::from_row(k, col, kl.ld[kFormKRight]);
  Operands::multiply_transposed(tile.n, block.head_dim_v, tile.m, state.p, state.ld,
                                q_at(kFormDoutRight), ql.ld[kFormDoutRight],
                                {.c = block.dv + col * block.dv_ld,
                                 .ldc = block.dv_ld,
                                 .accumulate = true,
                                 .prefetch = prefetch});
  Operands::multiply_transposed(tile.n, block.head_dim, tile.m, state.ds_right, state.ld,
                                q_at(kFormQRight), ql.ld[kFormQRight],
                                {.c = block.dk + col * block.dk_ld,
                                 .ldc = block.dk_ld,
                                 .alpha = rules.softmax_scale,
                                 .accumulate = true,
                                 .prefetch = prefetch});
  Operands::multiply(tile.m, block.head_dim, tile.n, state.ds_left, state.ld, k, kl.ld[kFormKRight],
                     {.c = block.dq + tile.q_begin * block.dq_ld,
                      .ldc = block.dq_ld,
                      .alpha = rules.softmax_scale,
                      .accumulate = true,
                      .prefetch = prefetch});
}

/// The part of a tile that is seen in part which can hold a pair that is seen, by position: from
/// even rows and multiples of kTrimKeys keys on. Empty where there is none.
FLASHTILE_INLINE TileSpan trimmed(const BwdBlock& block, TileSpan tile) {
  const variant::PositionMask& position = block.rules->position;
  const int64_t k_end = tile.k_begin + tile.n;
  int64_t begin = tile.q_begin;
  int64_t end = tile.q_begin + tile.m;
  while (begin < end && position.keys(begin).end <= tile.k_begin) ++begin;
  while (begin < end && position.keys(end - 1).begin >= k_end) --end;
  if (begin >= end) return {tile.q_begin, 0, tile.k_begin, 0};
  begin -= (begin - tile.q_begin) % 2;
  const int64_t seen_begin = position.keys(begin).begin;
  const int64_t seen_end = position.keys(end - 1).end;
  int64_t first = tile.k_begin;
  if (seen_begin > first) first += (seen_begin - first) / kTrimKeys * kTrimKeys;
  const int64_t last = seen_end < k_end ? seen_end : k_end;
  return {begin, end - begin, first, last - first};
}

/// True where some rows of a tile do not see all of its keys, by position.
FLASHTILE_INLINE bool is_cut(const BwdBlock& block, const TileSpan& tile) {
  const variant::PositionMask& position = block.rules->position;
  return position.keys(tile.q_begin).end < tile.k_begin + tile.n ||
         position.keys(tile.q_begin + tile.m - 1).begin > tile.k_begin;
}

template <class F, class Operands>
void bwd_block_of(const BwdBlock& block) {
  int64_t bytes = 0;
  BwdState<Operands> state =
      bwd_state<Operands>(block.scratch, block.block_m, block.block_n, block.head_dim, &bytes);
  Scratch scratch{block.program_scratch};
  state.programs = open_programs(*block.rules, scratch);
  for (int64_t r = 0; r < block.num_runs; ++r) {
    for (int64_t m_block = block.runs[r].begin; m_block < block.runs[r].end; ++m_block) {
      const int64_t q_begin = m_block * block.block_m;
      const int64_t left = block.seqlen_q - q_begin;
      const TileSpan tile{q_begin, left < block.block_m ? left : block.block_m, block.k_begin,
                          block.num_keys};
      if (block.runs[r].is_full) {
        RowPrefetch next = fetch_queries<Operands>(block, tile, m_block + 1);
        bwd_tile<F, Operands>(block, tile, true, state, &next);
        continue;
      }
      for_each_part(
          *block.rules, tile, is_cut(block, tile) ? kPartRows : tile.m,
          [&](const TileSpan& part) { return trimmed(block, part); },
          [&](const TileSpan& span, bool is_full) {
            bwd_tile<F, Operands>(block, span, is_full, state);
          });
    }
  }
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
