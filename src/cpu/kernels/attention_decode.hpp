// SPDX-License-Identifier: Apache-2.0
#pragma once

// Attention of a few rows over keys that are read once, where they lie: no packing.
//
//   S = softmax_scale Q K^T   (rows, n)
//   S = score rules, masks
//   P = exp(S - m), with the running reference m, as packed blocks have it
//   O = diag(f) O + P V       (rows, dv), a sum over the tile's keys by itself
//
// Each of these is the arithmetic of the forward over packed blocks, to the bit: a backward has to
// meet the lse that it is given, and with `batch_invariant` decoding gives what a prefill gives.
//
// Rows are the queries of all heads of a group, up to four at a time, so that each element of K and
// V is loaded once for four. Keys go by in groups of 16, and for a group all kv heads of the task
// are worked on, so that memory is read in the order in which heads lie side by side; see
// attention_decode_fetch.hpp for what comes next meanwhile.

#if defined(__AVX512BF16__)
#include "cpu/kernels/attention_decode_bf16.hpp"
#endif
#include "cpu/kernels/attention_decode_widened.hpp"
#include "cpu/kernels/attention_fwd.hpp"
#include "cpu/kernels/serving_kernels.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

inline constexpr int64_t kScoreLd = kDecodeKeys;

/// Row length of queries and sums: whole registers of products.
inline int64_t decode_ld(int64_t dim) {
#if defined(__AVX512BF16__)
  return (dim + kPairColumns - 1) / kPairColumns * kPairColumns;
#else
  return padded(dim);
#endif
}

/// Memory of a tile.
struct DecodeScratch {
  float* s;        ///< (rows of all heads, kScoreLd)
  float* sums;     ///< (rows of all heads, out_ld): P V of the tile
  float* factors;  ///< (rows of all heads): of O
  float* zeros;    ///< a row of V that nobody sees, and sums that hold nothing
  char* group;     ///< copies of a group of keys
  uint8_t* is_done;

  DecodeScratch(char* memory, int64_t num_heads, int64_t num_rows, int64_t head_dim,
                int64_t head_dim_v, int64_t* bytes) {
    Scratch scratch{memory};
    const int64_t rows = num_heads * num_rows;
    const int64_t dim = head_dim > head_dim_v ? head_dim : head_dim_v;
    s = scratch.take<float>(rows * kScoreLd);
    sums = scratch.take<float>(rows * decode_ld(head_dim_v));
    factors = scratch.take<float>(rows);
    zeros = scratch.take<float>(decode_ld(dim));
    group = scratch.take_bytes(kKeyGroup * decode_ld(dim) * 4);
    is_done = scratch.take<uint8_t>(num_heads);
    *bytes = scratch.used;
  }
};

inline int64_t decode_scratch_bytes(int64_t num_heads, int64_t num_rows, int64_t head_dim,
                                    int64_t head_dim_v) {
  int64_t bytes = 0;
  const DecodeScratch scratch(nullptr, num_heads, num_rows, head_dim, head_dim_v, &bytes);
  static_cast<void>(scratch);
  return bytes;
}

/// Products over float32 rows of T.
template <class T>
struct WidenedKeys {
  using Operands = FloatOperands;
  using OfTwo = Exp2;
  using Natural = Exp;
  static constexpr int64_t kUnit = kLanes;  ///< elements that a product takes of a row at a time

  template <int kRows>
  static FLASHTILE_INLINE void score(const DecodeTile& tile, KeyGroupRows k, const float* q,
                                     float alpha, float* s, TileFetch fetch) {
    score_widened<kRows, T>(k, q, tile.q_ld, tile.head_dim, alpha, s, kScoreLd, fetch);
  }
  template <int kRows>
  static FLASHTILE_INLINE void add(const DecodeTile& tile, KeyGroupRows v, const float* p,
                                   const SumRows& sums, TileFetch fetch) {
    add_widened<kRows, T>(v, p, kScoreLd, tile.head_dim_v, sums, fetch);
  }

  static constexpr int kHeadsTogether = 1;  ///< see PairedKeys

  /// A group's rows in the form that products read: where they lie, or copies in `memory`.
  static FLASHTILE_INLINE bool copy(DType dtype, KeyGroupRows rows, int64_t dim, char* memory) {
    if (sizeof(T) != 4 || dtype == DType::kF32) return false;
    auto* to = reinterpret_cast<float*>(memory);
    if (dtype == DType::kI8) {
      widen_group<I8>(rows, dim, to, decode_ld(dim));
    } else {
      widen_group<E4m3>(rows, dim, to, decode_ld(dim));
    }
    return true;
  }
  static constexpr int64_t kCopyBytes = 4;
};

#if defined(__AVX512BF16__)
/// Products over pairs of bf16, from rows of T. Queries are bf16, in rows of 2 q_ld elements.
template <class T>
struct PairedKeys {
  using Operands = Bf16Operands;
  using OfTwo = Exp2Fast;
  using Natural = ExpFast;
  static constexpr int64_t kUnit = kPairColumns;

  template <int kRows>
  static FLASHTILE_INLINE void score(const DecodeTile& tile, KeyGroupRows k, const float* q,
                                     float alpha, float* s, TileFetch fetch) {
    score_pairs<kRows, T>(k, reinterpret_cast<const Bf16*>(q), 2 * tile.q_ld,
                          decode_ld(tile.head_dim), alpha, s, kScoreLd, fetch);
  }
  /// Heads of one row each that are scored together: more chains of products at a time.
  static constexpr int kHeadsTogether = 4;
  static FLASHTILE_INLINE void score_together(const DecodeTile& tile, KeyGroupRows k,
                                              const float* q, float alpha, float* s,
                                              TileFetch fetch) {
    score_heads<kHeadsTogether, T>(k, tile.k_head_stride, reinterpret_cast<const Bf16*>(q),
                                   2 * tile.q_ld, tile.head_dim, alpha, s, kScoreLd, fetch);
  }
  template <int kRows>
  static FLASHTILE_INLINE void add(const DecodeTile& tile, KeyGroupRows v, const Bf16* p,
                                   const SumRows& sums, TileFetch fetch) {
    int64_t d = 0;
    for (; d + 2 * kPairColumns <= tile.head_dim_v; d += 2 * kPairColumns) {
      add_pairs<kRows, 2, T>(v, d, p, kScoreLd, sums, fetch);
    }
    for (; d < tile.head_dim_v; d += kPairColumns) {
      add_pairs<kRows, 1, T>(v, d, p, kScoreLd, sums, fetch);
    }
  }
  static FLASHTILE_INLINE bool needs_copy(DType dtype, int64_t dim) {
    return sizeof(T) != 1 && (dtype != DType::kBF16 || dim % kPairColumns != 0);
  }
  static FLASHTILE_INLINE bool copy(DType dtype, KeyGroupRows rows, int64_t dim, char* memory) {
    if (!needs_copy(dtype, dim)) return false;
    auto* to = reinterpret_cast<Bf16*>(memory);
    if (dtype == DType::kE4M3) {
      copy_pairs<E4m3>(rows, dim, to, decode_ld(dim));
    } else if (dtype == DType::kI8) {
      copy_pairs<I8>(rows, dim, to, decode_ld(dim));
    } else {
      copy_pairs<Bf16>(rows, dim, to, decode_ld(dim));
    }
    return true;
  }
  static constexpr int64_t kCopyBytes = 2;
};
#endif

/// Calls body(count, first row) for all rows, four at a time.
template <int n>
struct RowCount {
  static constexpr int kRows = n;
};
template <class Body>
FLASHTILE_INLINE void for_each_row_group(int64_t num_rows, const Body& body) {
  int64_t row = 0;
  for (; row + 4 <= num_rows; row += 4) body(RowCount<4>(), row);
  for (; row + 2 <= num_rows; row += 2) body(RowCount<2>(), row);
  if (row < num_rows) body(RowCount<1>(), row);
}

/// Rows of a tile for whole groups of keys: the last one stands for those that are not there. They
/// get the weight 0.
struct HeadRows {
  const char* const* rows;                               ///< of the first head
  const char* copies[static_cast<size_t>(kDecodeKeys)];  ///< where the last group is no whole one

  HeadRows(const char* const* given, int64_t count) : rows(given) {
    if (count % kKeyGroup == 0) return;
    for (int64_t j = 0; j < count; ++j) copies[j] = given[j];
    for (int64_t j = count; j % kKeyGroup != 0; ++j) copies[j] = given[count - 1];
    rows = copies;
  }
  /// The first and the last of `count` rows are as far apart as their number says.
  bool is_even(int64_t count) const {
    return count > 1 && rows[count - 1] - rows[0] == (count - 1) * (rows[1] - rows[0]);
  }
  HeadRows(const HeadRows&) = delete;
  HeadRows& operator=(const HeadRows&) = delete;
};

/// What a score is of q.k, in the scores' units.
FLASHTILE_INLINE float score_scale(const ScoreRules& rules) {
  return rules.is_log2 ? rules.softmax_scale * kLog2e : rules.softmax_scale;
}

/// False where the scale waits for the slopes, which one rounding adds.
FLASHTILE_INLINE bool has_scaled_product(const ScoreRules& rules) {
  return !rules.has_alibi || rules.softcap > 0;
}

/// The work on one tile.
template <class Keys>
class TileWork {
 public:
  explicit TileWork(const DecodeTile& tile)
      : tile_(tile),
        num_rows_(tile.seqlen_q * tile.group_size),
        scratch_(tile.scratch, tile.num_heads, num_rows_, tile.head_dim, tile.head_dim_v, &bytes_),
        k_(tile.k_rows, tile.num_keys),
        v_(tile.v_rows, tile.num_keys),
        next_k_(tile.next_k_rows, tile.num_next),
        next_v_(tile.next_v_rows, tile.num_next),
        walk_k_(walk(next_k_, tile.head_dim)),
        walk_v_(walk(next_v_, tile.head_dim_v)) {
    const bool is_one_stretch = next_k_.is_even(tile.num_next);
    fetch_k_ = {&walk_k_, is_one_stretch ? &walk_k_ : &walk_v_};
    fetch_v_ = {is_one_stretch ? &walk_v_ : &walk_k_, &walk_v_};
    fill_row(scratch_.zeros, decode_ld(tile.head_dim_v), 0);
  }

  void run() {
    for (int64_t j = 0; j < tile_.num_keys; j += kKeyGroup) score_group(j);
    if (tile_.k_scales != nullptr) scale_keys();
    const bool is_log2 = tile_.heads[0].rules[0]->is_log2;
    if (tile_.v_scales != nullptr) {
      is_log2 ? make_weights<Exp2, FloatOperands>() : make_weights<Exp, FloatOperands>();
    } else if (is_log2) {
      make_weights<typename Keys::OfTwo, typename Keys::Operands>();
    } else {
      make_weights<typename Keys::Natural, typename Keys::Operands>();
    }
    for (int64_t j = 0; j < tile_.num_keys; j += kKeyGroup) add_group(j);
    for (int64_t h = 0; h < tile_.num_heads; ++h) join(h);
  }

 private:
  using Element = typename Keys::Operands::Element;

  float* scores(int64_t h) const { return scratch_.s + h * num_rows_ * kScoreLd; }
  /// P of a head, in place of its S: rows of kScoreLd elements.
  Element* weights(int64_t h) const { return reinterpret_cast<Element*>(scores(h)); }

  RowWalk walk(const HeadRows& next, int64_t dim) const {
    const bool is_byte = tile_.dtype == DType::kI8 || tile_.dtype == DType::kE4M3;
    const int64_t bytes = tile_.dtype == DType::kF32 ? 4 : is_byte ? 1 : 2;
    const int64_t num_rows = (tile_.num_next + kKeyGroup - 1) / kKeyGroup * kKeyGroup;
    return {next.rows, num_rows, dim * bytes * tile_.num_heads, Keys::kUnit * bytes};
  }

  /// Rows of a group in the form that products read.
  struct Group {
    const char* copies[static_cast<size_t>(kKeyGroup)];
    KeyGroupRows rows;

    Group(const TileWork& work, KeyGroupRows given, int64_t dim) : rows(given) {
      char* memory = work.scratch_.group;
      if (!Keys::copy(work.tile_.dtype, given, dim, memory)) return;
      for (int64_t u = 0; u < kKeyGroup; ++u) {
        copies[u] = memory + u * decode_ld(dim) * Keys::kCopyBytes;
      }
      rows = {copies, 0};
    }
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
  };

  /// Products of all rows with the same keys fetch the same.
  struct FetchAgain {
    TileFetch fetch;
    RowWalk::Place first, second;

    explicit FetchAgain(TileFetch of)
        : fetch(of), first(of.first->place()), second(of.second->place()) {}
    void go_back() const {
      fetch.first->go_to(first);
      fetch.second->go_to(second);
    }
  };

  /// Heads from h on that are scored together.
  bool are_together(int64_t h) const {
    const int64_t end = h + Keys::kHeadsTogether;
    if (num_rows_ != 1 || end > tile_.num_heads || Keys::needs_copy(tile_.dtype, tile_.head_dim)) {
      return false;
    }
    while (h < end && tile_.heads[h].is_seen) ++h;
    return h == end;
  }

  void score_group(int64_t j) {
    const ScoreRules& rules = *tile_.heads[0].rules[0];
    const float alpha = has_scaled_product(rules) ? score_scale(rules) : 1.0f;
    int64_t h = 0;
    if constexpr (Keys::kHeadsTogether > 1) {
      for (; are_together(h); h += Keys::kHeadsTogether) {
        Keys::score_together(tile_, {k_.rows + j, h * tile_.k_head_stride}, tile_.heads[h].q, alpha,
                             scores(h) + j, fetch_k_);
      }
    }
    for (; h < tile_.num_heads; ++h) {
      if (!tile_.heads[h].is_seen) continue;
      const Group group(*this, {k_.rows + j, h * tile_.k_head_stride}, tile_.head_dim);
      const FetchAgain again(fetch_k_);
      for_each_row_group(num_rows_, [&](auto count, int64_t r) {
        again.go_back();
        Keys::template score<decltype(count)::kRows>(tile_, group.rows,
                                                     tile_.heads[h].q + r * tile_.q_ld, alpha,
                                                     scores(h) + r * kScoreLd + j, fetch_k_);
      });
    }
  }

  /// s[h][r][j] *= k_scales[h][j]
  void scale_keys() {
    for (int64_t h = 0; h < tile_.num_heads; ++h) {
      scale_scores(scores(h), tile_.k_scales + h * kDecodeKeys);
    }
  }
  void scale_scores(float* s, const float* scales) const {
    for (int64_t r = 0; r < num_rows_; ++r) {
      float* row = s + r * kScoreLd;
      for (int64_t j = 0; j < tile_.num_keys; j += kLanes) {
        store(row + j, load(row + j) * load(scales + j));
      }
    }
  }

  /// P *= v_scales, and in the form that products read.
  void scale_weights(int64_t h) {
    float* s = scores(h);
    scale_scores(s, tile_.v_scales + h * kDecodeKeys);
    if constexpr (sizeof(Element) == 2) {
      for (int64_t j = 0; j < num_rows_ * kScoreLd; j += kLanes) {
        store_flush(weights(h) + j, load(s + j));
      }
    }
  }

  template <class F, class Operands>
  void make_weights();
  void add_seen_values(int64_t h, const uint8_t* is_seen);

  void add_group(int64_t j) {
    for (int64_t h = 0; h < tile_.num_heads; ++h) {
      if (scratch_.is_done[h] == 0) add_head(h, j, {v_.rows + j, h * tile_.v_head_stride});
    }
  }

  /// Sums of the tile += P V of a group.
  void add_head(int64_t h, int64_t j, KeyGroupRows v) {
    const Group group(*this, v, tile_.head_dim_v);
    const FetchAgain again(fetch_v_);
    for_each_row_group(num_rows_, [&](auto count, int64_t r) {
      again.go_back();
      float* sums = scratch_.sums + (h * num_rows_ + r) * tile_.out_ld;
      const bool is_first = j == 0;
      Keys::template add<decltype(count)::kRows>(
          tile_, group.rows, weights(h) + r * kScoreLd + j,
          {is_first ? scratch_.zeros : sums, is_first ? 0 : tile_.out_ld, sums, tile_.out_ld},
          fetch_v_);
    });
  }

  /// O = diag(f) O + the tile's sums.
  void join(int64_t h) {
    const DecodeHead& head = tile_.heads[h];
    if (!head.is_seen) return;
    const float* sums = scratch_.sums + h * num_rows_ * tile_.out_ld;
    float* out = head.state.out;
    const int64_t ld = tile_.out_ld;
    for (int64_t r = 0; r < num_rows_; ++r, sums += ld, out += ld) {
      if (head.is_first) {
        for (int64_t d = 0; d < ld; d += kLanes) store(out + d, load(sums + d));
        continue;
      }
      const Vf factor = broadcast(scratch_.factors[h * num_rows_ + r]);
      for (int64_t d = 0; d < ld; d += kLanes) {
        store(out + d, load(sums + d) + load(out + d) * factor);
      }
    }
  }

  const DecodeTile& tile_;
  int64_t num_rows_;  ///< of a head
  int64_t bytes_ = 0;
  DecodeScratch scratch_;
  HeadRows k_, v_, next_k_, next_v_;
  RowWalk walk_k_, walk_v_;
  TileFetch fetch_k_, fetch_v_;
};

/// Score options and masks. Where a head sees nothing of the tile its scores are -inf.
inline void decode_rules(const DecodeTile& tile, const DecodeHead& head, float* s) {
  for (int64_t g = 0; g < tile.group_size; ++g) {
    float* rows = s + g * tile.seqlen_q * kScoreLd;
    if (head.cover[g] == TileCover::kNone) {
      for (int64_t i = 0; i < tile.seqlen_q; ++i) {
        fill_row(rows + i * kScoreLd, tile.num_keys, -kInfinity);
      }
      continue;
    }
    const TileSpan span{0, tile.seqlen_q, tile.k_begin, tile.num_keys};
    const bool is_full = head.cover[g] == TileCover::kFull;
    const ScoreRules& rules = *head.rules[g];
    const auto add_alibi = [&](float alpha) {
      for (int64_t i = 0; i < tile.seqlen_q; ++i) {
        add_alibi_row(rules, i, tile.k_begin, tile.num_keys, alpha, rows + i * kScoreLd);
      }
    };
    const bool is_scaled = has_scaled_product(rules);
    if (!is_scaled) add_alibi(score_scale(rules));
    apply_softcap(rules, span, rows, kScoreLd);
    add_bias(rules, span, rows, kScoreLd);
    if (is_scaled && rules.has_alibi) add_alibi(1);
    apply_position_masks(rules, span, is_full, rows, kScoreLd);
  }
}

/// P in place of S, in rows of kScoreLd elements, and what earlier sums are multiplied by. `state`
/// is any: it is large, and serves all heads.
template <class F, class Operands>
void decode_softmax(const DecodeTile& tile, const DecodeHead& head, float* s, float* factors,
                    FwdState<Operands>& state) {
  using Element = typename Operands::Element;
  const DecodeState& all = head.state;
  if (head.is_first) {
    const int64_t num_rows = tile.seqlen_q * tile.group_size;
    for (int64_t r = 0; r < num_rows; ++r) all.row_max[r] = -kInfinity;
    fill_row(all.row_sums, num_rows * kLanes, 0);
    fill_row(all.row_tops, num_rows * kLanes, -kInfinity);
  }
  state.unit = head.rules[0]->is_log2 ? kLn2 : 1.0f;
  state.s_ld = kScoreLd;
  PackedKeys keys{};
  keys.block_n = kDecodeKeys;
  FwdBlock block{};
  block.keys = &keys;
  const TileSpan span{0, tile.seqlen_q, tile.k_begin, tile.num_keys};
  for (int64_t g = 0; g < tile.group_size; ++g) {
    const int64_t row = g * tile.seqlen_q;
    state.s = s + row * kScoreLd;
    state.p = reinterpret_cast<Element*>(s) + row * kScoreLd;
    state.row_max = all.row_max + row;
    state.row_sums = all.row_sums + row * kLanes;
    state.row_tops = all.row_tops + row * kLanes;
    state.factor = factors + row;
    block.rules = head.rules[g];
    try_softmax<F>(block, span, true, state);
    for (int64_t i = 0; i < tile.seqlen_q; ++i) {
      if (head.rules[g]->has_dropout) drop_row(*head.rules[g], span, i, state);
      Element* p = weights_row(state, i);
      for (int64_t j = padded(tile.num_keys); j % kKeyGroup != 0; j += kLanes) {
        store_flush(p + j, zero());
      }
    }
  }
}

/// S of all heads to P. Where a head may see a part of the tile only (a bias of -inf hides keys as
/// well), its values are added, and it is done.
template <class Keys>
template <class F, class Operands>
void TileWork<Keys>::make_weights() {
  FwdState<Operands> state{};
  for (int64_t h = 0; h < tile_.num_heads; ++h) {
    const DecodeHead& head = tile_.heads[h];
    scratch_.is_done[h] = !head.is_seen;
    if (!head.is_seen) continue;
    float* s = scores(h);
    bool is_full = head.rules[0]->bias == nullptr;
    for (int64_t g = 0; g < tile_.group_size; ++g) {
      is_full = is_full && head.cover[g] == TileCover::kFull;
    }
    if (!is_full || !head.rules[0]->is_plain) decode_rules(tile_, head, s);
    uint8_t is_seen[static_cast<size_t>(kDecodeKeys)];
    for (int64_t j = 0; !is_full && j < tile_.num_keys; ++j) {
      is_seen[j] = 0;
      for (int64_t r = 0; r < num_rows_ && is_seen[j] == 0; ++r) {
        is_seen[j] = s[r * kScoreLd + j] != -kInfinity;
      }
    }
    decode_softmax<F>(tile_, head, s, scratch_.factors + h * num_rows_, state);
    if (tile_.v_scales != nullptr) scale_weights(h);
    if (is_full) continue;
    add_seen_values(h, is_seen);
    scratch_.is_done[h] = 1;
  }
}

/// P V of a head that sees only a part of the tile: values of keys that no row sees are read from a
/// row of zeros, because they may be NaN.
template <class Keys>
void TileWork<Keys>::add_seen_values(int64_t h, const uint8_t* is_seen) {
  const char* seen[static_cast<size_t>(kDecodeKeys)];
  for (int64_t j = 0; j < tile_.num_keys; ++j) {
    seen[j] = is_seen[j] != 0 ? tile_.v_rows[j] + h * tile_.v_head_stride
                              : reinterpret_cast<const char*>(scratch_.zeros);
  }
  const HeadRows rows(seen, tile_.num_keys);
  for (int64_t j = 0; j < tile_.num_keys; j += kKeyGroup) {
    add_head(h, j, {rows.rows + j, 0});
  }
}

#if defined(__AVX512BF16__)
inline void decode_tile(const DecodeTile& tile) {
  const bool is_whole = (tile.head_dim | tile.head_dim_v) % kPairColumns == 0;
  if (is_whole && tile.dtype == DType::kE4M3) {
    TileWork<PairedKeys<E4m3>>(tile).run();
  } else if (is_whole && tile.dtype == DType::kI8) {
    TileWork<PairedKeys<I8>>(tile).run();
  } else {
    TileWork<PairedKeys<Bf16>>(tile).run();
  }
}

inline void decode_queries(const DecodeQueries& queries) {
  pack_rows_bf16({queries.rows, queries.dtype, queries.stride}, queries.num_rows, queries.head_dim,
                 reinterpret_cast<Bf16*>(queries.q), 2 * queries.q_ld);
}
#else
inline void decode_tile(const DecodeTile& tile) {
  if (tile.dtype == DType::kBF16) {
    TileWork<WidenedKeys<Bf16>>(tile).run();
  } else if (tile.dtype == DType::kF16) {
    TileWork<WidenedKeys<F16>>(tile).run();
  } else {
    TileWork<WidenedKeys<float>>(tile).run();
  }
}

inline void decode_queries(const DecodeQueries& queries) {
  pack_rows({queries.rows, queries.dtype, queries.stride}, queries.num_rows, queries.head_dim,
            queries.q, queries.q_ld);
}
#endif

/// All parts of row r, in order, as the state of the one row of `state`.
inline void join_row(const DecodeFinish& f, int64_t r, FwdState<FloatOperands>& state) {
  float top = -kInfinity;
  Vf tops = broadcast(-kInfinity);
  for (int64_t p = 0; p < f.num_parts; ++p) {
    const DecodeState& part = f.parts[p];
    if (part.row_max[r] > top) top = part.row_max[r];
    tops = max(load(part.row_tops + r * kLanes), tops);
  }
  const float reference = softmax_reference(top);
  float total = 0;
  fill_row(state.o, f.out_ld, 0);
  for (int64_t p = 0; p < f.num_parts; ++p) {
    const DecodeState& part = f.parts[p];
    const float sum = reduce_add(load(part.row_sums + r * kLanes));
    if (sum == 0) continue;  // saw nothing; a NaN sum stays
    const float weight = __builtin_expf((part.row_max[r] - reference) * f.unit);
    total += sum * weight;
    for (int64_t d = 0; d < f.out_ld; d += kLanes) {
      store(state.o + d,
            fma(broadcast(weight), load(part.out + r * f.out_ld + d), load(state.o + d)));
    }
  }
  *state.row_max = top;
  fill_row(state.row_sums, kLanes, 0);
  state.row_sums[0] = total;
  store(state.row_tops, tops);
}

inline void decode_finish(const DecodeFinish& f) {
  alignas(64) float sum[1024 + kKeyGroup * 2];
  alignas(64) float row_sums[kLanes];
  alignas(64) float row_tops[kLanes];
  float row_max, factor;
  FwdState<FloatOperands> state{};
  state.o = sum;
  state.o_ld = f.out_ld;
  state.row_max = &row_max;
  state.row_sums = row_sums;
  state.row_tops = row_tops;
  state.factor = &factor;
  state.unit = f.unit;
  ScoreRules rules{};
  rules.has_dropout = f.gain != 1;
  rules.dropout_gain = f.gain;
  FwdBlock block{};
  block.rules = &rules;
  block.num_rows = 1;
  block.head_dim_v = f.head_dim_v;
  block.out_dtype = f.out_dtype;
  block.out_stride = f.out_stride;
  for (int64_t r = 0; r < f.num_rows; ++r) {
    join_row(f, r, state);
#if defined(__AVX512BF16__)
    restore_columns(sum, f.head_dim_v);
#endif
    block.sink = f.sink == nullptr ? -kInfinity : f.sink[r];
    block.out_rows = f.out_rows + r;
    block.lse = f.lse + r;
    block.max_logit = f.max_logit + r;
    fwd_finish<Exp, FloatOperands>(block, state);
  }
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
