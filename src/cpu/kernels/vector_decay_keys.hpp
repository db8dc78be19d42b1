// SPDX-License-Identifier: Apache-2.0
#pragma once

// dQ, forward over chunks, and dK, back over them, of vector decay as products of bf16 pairs
// (vector_decay_chunk.hpp), without a row's own key or query (recurrent_bwd.hpp). With S the state
// before the chunk, X the gradient of that behind it, and A_ij = do_i.v_j:
//
//   dq_i = [first..i] S do_i + sum over j < i of A_ij [j+1..i] k_j      S' = [first..last] S + K~'
//   V dk_j = [j+1..last] X v_j + sum over i > j of A_ij [j+1..i] q_i      X' = [first..last] X +
//   Q~' dO
//
// Both states are transposed: strips of key dimensions, so that decays are vectors. Within a block
// keys, or queries, decay row by row in registers; the other block is a product.
//
// The gradient of a decay is a sum over all later rows of q dq - k dk, where the roundings of both
// would add up. So it begins anew behind every second chunk, from S, kept on the way forward, and
// X.

#include "cpu/kernels/vector_decay_values.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

struct VectorDecayKeysScratch {
  static constexpr int64_t kRows = 2 * kBlock;

  Bf16* left;          ///< dO or V; of each member
  Bf16* v_transposed;  ///< of each block
  Bf16* pairs;         ///< V, or dO of each member
  float* scores;       ///< A; of each member
  Bf16* between;       ///< A of the second block's queries and the first one's keys, or A'
  Bf16* right;         ///< of a strip, the state
  Bf16* decayed;       ///< of a strip, K~ or Q~
  Bf16* other;         ///< of a strip, what the other block reads
  float* rows;         ///< of a strip, keys or queries decayed to the end of their block
  float* by_state;     ///< of a strip, what the state gives
  float* by_other;
  float* decay;  ///< of a strip, of each block
  int64_t ld_v;
  int64_t bytes;

  VectorDecayKeysScratch(char* memory, int64_t head_dim_v, int64_t num_members) {
    Scratch scratch{memory};
    ld_v = whole_strips(head_dim_v);
    left = scratch.take<Bf16>(num_members * kRows * ld_v);
    v_transposed = scratch.take<Bf16>(kRows * ld_v);
    pairs = scratch.take<Bf16>(num_members * kRows * ld_v);
    scores = scratch.take<float>(num_members * kRows * kRows);
    between = scratch.take<Bf16>(num_members * kBlock * kBlock);
    right = scratch.take<Bf16>((head_dim_v + 1) * kStripWidth);
    decayed = scratch.take<Bf16>(kRows * kStripWidth);
    other = scratch.take<Bf16>(kBlock * kStripWidth);
    rows = scratch.take<float>(kRows * kStripWidth);
    by_state = scratch.take<float>(kRows * kStripWidth);
    by_other = scratch.take<float>(kBlock * kStripWidth);
    decay = scratch.take<float>(2 * kStripWidth);
    bytes = scratch.used;
  }
};

/// Float rows as they are, in bf16. False: some number is not finite.
inline bool round_rows(const float* src, int64_t rows, int64_t ld, Bf16* dst) {
  FiniteCheck check;
  for (int64_t n = 0; n < rows * ld; n += kPairColumns) {
    const Vf x = load(src + n);
    const Vf y = load(src + n + kLanes);
    check.add(x);
    check.add(y);
    store_u(reinterpret_cast<uint32_t*>(dst + n), round_neighbours(x, y));
  }
  return !check.failed();
}

/// A of all members, and V or dO in the forms that products take. False: some number is not finite.
inline bool prepare_keys(const VectorDecayKeys& c, const VectorDecayKeysScratch& scratch) {
  constexpr int64_t kRows = VectorDecayKeysScratch::kRows;
  const int64_t ld = scratch.ld_v;
  for (int64_t first = 0; first < c.rows; first += kBlock) {
    float block[kBlock * kStripWidth];
    for (int64_t column = 0; column < ld; column += kStripWidth) {
      for (int64_t j = 0; j < kBlock; ++j) {
        for (int64_t n = 0; n < kStripWidth; n += kLanes) {
          const bool is_row = first + j < c.rows;
          store(block + j * kStripWidth + n,
                is_row ? load(c.v + (first + j) * ld + column + n) : zero());
        }
      }
      transpose_keys(block, kStripWidth, scratch.v_transposed + first * ld + column * kBlock);
    }
  }
  FiniteCheck check;
  const auto check_rows = [&](const float* rows) {
    for (int64_t n = 0; n < c.rows * c.ld_k; n += kLanes) check.add(load(rows + n));
  };
  check_rows(c.decay);
  if (!c.is_back) check_rows(c.k);
  for (int64_t member = 0; member < c.num_members; ++member) {
    if (c.is_back) check_rows(c.q + member * c.q_step);
    const float* dout = c.dout + member * c.dout_step;
    Bf16* left = scratch.left + member * kRows * ld;
    if (!round_rows(dout, c.rows, ld, left)) return false;
    float* scores = scratch.scores + member * kRows * kRows;
    for (int64_t n = 0; n < kRows * kRows; n += kLanes) store(scores + n, zero());
    for (int64_t first = 0; first < c.rows; first += kBlock) {
      gemm_bf16(c.rows - first, kBlock, ld, {left + first * ld, ld, 2},
                scratch.v_transposed + first * ld, kBlock,
                {.c = scores + first * kRows + first, .ldc = kRows});
    }
    Vu x[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) x[i] = as_vu(load(scores + (kBlock + i) * kRows));
    if (c.is_back) transpose(x);
    for (int64_t i = 0; i < kBlock; ++i) {
      store_flush(scratch.between + (member * kBlock + i) * kBlock, as_vf(x[i]));
    }
    if (c.is_back) {
      right_from_floats(dout, ld, c.rows, ld, nullptr, scratch.pairs + member * kRows * ld, ld);
    }
  }
  if (check.failed() || !round_rows(c.v, c.rows, ld, c.is_back ? scratch.left : scratch.pairs)) {
    return false;
  }
  if (!c.is_back) right_from_floats(c.v, ld, c.rows, ld, nullptr, scratch.pairs, ld);
  return true;
}

/// Row `i` of a block of `count` rows, `missing` behind it.
FLASHTILE_INLINE Vf block_row(const float* rows, int64_t ld, int64_t i, int64_t count,
                              float missing) {
  return i < count ? load(rows + i * ld) : broadcast(missing);
}

/// Keys of a block decay row by row, from a vector of columns on, and are summed up by each query:
/// out = sum over j < i of A_ij [j+1..i] k_j; what is left of them goes to `rows`.
inline void sum_keys(const float* k, const float* decay, int64_t ld, int64_t count,
                     const float* scores, float* rows, float* out) {
  Vf w[kBlock];
  FLASHTILE_UNROLL
  for (int i = 0; i < kBlock; ++i) {
    const Vf d = block_row(decay, ld, i, count, 1.0f);
    Vf sum = zero();
    FLASHTILE_UNROLL
    for (int j = 0; j < i; ++j) {
      w[j] = w[j] * d;
      sum = fma(broadcast(scores[i * VectorDecayKeysScratch::kRows + j]), w[j], sum);
    }
    w[i] = block_row(k, ld, i, count, 0.0f);
    if (i < count) store(out + i * ld, sum);
  }
  FLASHTILE_UNROLL
  for (int j = 0; j < kBlock; ++j) {
    if (j < count) store(rows + j * kStripWidth, w[j]);
  }
}

/// Likewise queries, back to each key: out += sum over i > j of A_ij [j+1..i] q_i; decayed by the
/// block's first row, too, they go to `rows`.
inline void sum_queries(const float* q, const float* decay, int64_t ld, int64_t count,
                        const float* scores, float* rows, float* out) {
  Vf u[kBlock];
  FLASHTILE_UNROLL
  for (int n = 0; n < kBlock; ++n) {
    const int j = static_cast<int>(kBlock) - 1 - n;
    const Vf d = block_row(decay, ld, j, count, 1.0f);
    Vf sum = zero();
    FLASHTILE_UNROLL
    for (int i = j + 1; i < kBlock; ++i) {
      sum = fma(broadcast(scores[i * VectorDecayKeysScratch::kRows + j]), u[i], sum);
      u[i] = u[i] * d;
    }
    u[j] = block_row(q, ld, j, count, 0.0f) * d;
    if (j < count) store(out + j * ld, load(out + j * ld) + sum);
  }
  FLASHTILE_UNROLL
  for (int i = 0; i < kBlock; ++i) {
    if (i < count) store(rows + i * kStripWidth, u[i]);
  }
}

/// A strip at work: some columns of all rows.
struct KeyStrip {
  int64_t column;
  float* state;
  uint16_t* kept;  ///< may be null
};

FLASHTILE_INLINE int64_t rows_of_block(const VectorDecayKeys& c, int64_t first) {
  return first + kBlock < c.rows ? kBlock : c.rows - first;
}

/// The decay of each block, and of the whole chunk to the state.
inline void decay_key_strip(const VectorDecayKeys& c, const VectorDecayKeysScratch& scratch,
                            const KeyStrip& strip) {
  for (int64_t n = 0; n < kStripWidth; n += kLanes) {
    Vf all = broadcast(1.0f);
    for (int64_t first = 0; first < c.rows; first += kBlock) {
      Vf passed = broadcast(1.0f);
      for (int64_t i = first; i < first + rows_of_block(c, first); ++i) {
        passed = passed * load(c.decay + i * c.ld_k + strip.column + n);
      }
      store(scratch.decay + first / kBlock * kStripWidth + n, passed);
      all = all * passed;
    }
    for (int64_t j = 0; j < c.head_dim_v; ++j) {
      float* at = strip.state + j * kStripWidth + n;
      store(at, load(at) * all);
    }
  }
}

/// Multiplies the rows of a block by the decay of the other one, where there are two.
inline void decay_by_other(const VectorDecayKeys& c, const VectorDecayKeysScratch& scratch,
                           int64_t block) {
  if (c.rows <= kBlock) return;
  const float* decay = scratch.decay + (1 - block) * kStripWidth;
  for (int64_t i = block * kBlock; i < (block + 1) * kBlock && i < c.rows; ++i) {
    for (int64_t n = 0; n < kStripWidth; n += kLanes) {
      float* at = scratch.rows + i * kStripWidth + n;
      store(at, load(at) * load(decay + n));
    }
  }
}

/// X or S += its pairs times what has decayed.
inline void add_to_key_strip(const VectorDecayKeys& c, const VectorDecayKeysScratch& scratch,
                             const KeyStrip& strip, const Bf16* pairs) {
  right_from_floats(scratch.rows, kStripWidth, c.rows, kStripWidth, nullptr, scratch.decayed,
                    kStripWidth);
  gemm_bf16(c.head_dim_v, kStripWidth, c.rows, {pairs, 2, 2 * scratch.ld_v}, scratch.decayed,
            kStripWidth,
            {.c = strip.state, .ldc = kStripWidth, .accumulate = true, .prefetch = c.prefetch});
}

inline void query_strip(const VectorDecayKeys& c, const VectorDecayKeysScratch& scratch,
                        const KeyStrip& strip) {
  constexpr int64_t kRows = VectorDecayKeysScratch::kRows;
  for (int64_t member = 0; member < c.num_members; ++member) {
    float* out = c.out + member * c.q_step + strip.column;
    const float* scores = scratch.scores + member * kRows * kRows;
    gemm_bf16(c.rows, kStripWidth, c.head_dim_v,
              {scratch.left + member * kRows * scratch.ld_v, scratch.ld_v, 2}, scratch.right,
              kStripWidth, {.c = scratch.by_state, .ldc = kStripWidth, .prefetch = c.prefetch});
    for (int64_t first = 0; first < c.rows; first += kBlock) {
      const int64_t count = rows_of_block(c, first);
      if (first > 0) {
        right_from_floats(scratch.rows, kStripWidth, kBlock, kStripWidth, nullptr, scratch.other,
                          kStripWidth);
        gemm_bf16(count, kStripWidth, kBlock,
                  {scratch.between + member * kBlock * kBlock, kBlock, 2}, scratch.other,
                  kStripWidth, {.c = scratch.by_other, .ldc = kStripWidth});
      }
      for (int64_t n = 0; n < kStripWidth; n += kLanes) {
        const int64_t at = first * c.ld_k + strip.column + n;
        sum_keys(c.k + at, c.decay + at, c.ld_k, count, scores + first * kRows + first,
                 scratch.rows + first * kStripWidth + n, out + first * c.ld_k + n);
        Vf passed = broadcast(1.0f);
        const Vf before = first == 0 ? passed : load(scratch.decay + n);
        for (int64_t i = first; i < first + count; ++i) {
          passed = passed * load(c.decay + i * c.ld_k + strip.column + n);
          Vf x = load(scratch.by_state + i * kStripWidth + n) * before;
          if (first > 0) x = x + load(scratch.by_other + (i - first) * kStripWidth + n);
          store(out + i * c.ld_k + n, fma(passed, x, load(out + i * c.ld_k + n)));
        }
      }
    }
  }
  decay_by_other(c, scratch, 0);
  for (int64_t n = 0; c.ends_sequence && n < kStripWidth; ++n) {
    scratch.rows[(c.rows - 1) * kStripWidth + n] = 0;
  }
  add_to_key_strip(c, scratch, strip, scratch.pairs);
}

/// out (+)= [j+1..] x_j for the rows of a block, where [j+1..] goes to its end.
inline void add_decayed_back(const VectorDecayKeys& c, int64_t first, int64_t column,
                             const float* x, const float* behind, bool adds, float* out) {
  for (int64_t n = 0; n < kStripWidth; n += kLanes) {
    Vf passed = behind == nullptr ? broadcast(1.0f) : load(behind + n);
    for (int64_t j = rows_of_block(c, first) - 1; j >= 0; --j) {
      float* to = out + (first + j) * c.ld_k + n;
      store(to, fma(passed, load(x + j * kStripWidth + n), adds ? load(to) : zero()));
      passed = passed * load(c.decay + (first + j) * c.ld_k + column + n);
    }
  }
}

inline void key_strip(const VectorDecayKeys& c, const VectorDecayKeysScratch& scratch,
                      const KeyStrip& strip) {
  constexpr int64_t kRows = VectorDecayKeysScratch::kRows;
  float* out = c.out + strip.column;
  const bool has_two = c.rows > kBlock;
  gemm_bf16(c.rows, kStripWidth, c.head_dim_v, {scratch.left, scratch.ld_v, 2}, scratch.right,
            kStripWidth, {.c = scratch.by_state, .ldc = kStripWidth, .prefetch = c.prefetch});
  for (int64_t first = 0; first < c.rows; first += kBlock) {
    add_decayed_back(c, first, strip.column, scratch.by_state + first * kStripWidth,
                     first == 0 && has_two ? scratch.decay + kStripWidth : nullptr, false, out);
  }
  for (int64_t member = 0; member < c.num_members; ++member) {
    const float* q = c.q + member * c.q_step;
    const float* scores = scratch.scores + member * kRows * kRows;
    for (int64_t first = 0; first < c.rows; first += kBlock) {
      const int64_t count = rows_of_block(c, first);
      for (int64_t n = 0; n < kStripWidth; n += kLanes) {
        const int64_t at = first * c.ld_k + strip.column + n;
        sum_queries(q + at, c.decay + at, c.ld_k, count, scores + first * kRows + first,
                    scratch.rows + first * kStripWidth + n, out + first * c.ld_k + n);
      }
    }
    if (has_two) {
      const int64_t count = rows_of_block(c, kBlock);
      right_from_floats(scratch.rows + kBlock * kStripWidth, kStripWidth, count, kStripWidth,
                        nullptr, scratch.other, kStripWidth);
      gemm_bf16(kBlock, kStripWidth, count, {scratch.between + member * kBlock * kBlock, kBlock, 2},
                scratch.other, kStripWidth,
                {.c = scratch.by_other, .ldc = kStripWidth, .accumulate = member > 0});
      decay_by_other(c, scratch, 1);
    }
    add_to_key_strip(c, scratch, strip, scratch.pairs + member * kRows * scratch.ld_v);
  }
  if (has_two) add_decayed_back(c, 0, strip.column, scratch.by_other, nullptr, true, out);
}

/// The bits of a state that was not kept.
inline constexpr uint32_t kNotKept = 0x7FFF7FFF;

/// passing = the sums over value dimensions of the kept state times X.
inline void begin_sums(const VectorDecayKeys& c, const KeyStrip& strip) {
  const auto* kept = reinterpret_cast<const uint32_t*>(strip.kept);
  if (kept[0] == kNotKept) return;
  for (int64_t n = 0; n < kStripWidth && strip.column + n < c.head_dim; n += kLanes) {
    Vf sum = zero();
    for (int64_t j = 0; j < c.head_dim_v; j += 2) {
      const Vu pairs = load_u(kept + j / 2 * kStripWidth + n);
      const float* x = strip.state + j * kStripWidth + n;
      sum = fma(as_vf(pairs << 16), load(x), sum);
      if (j + 1 == c.head_dim_v) continue;
      sum = fma(as_vf(pairs & broadcast_u(0xFFFF0000)), load(x + kStripWidth), sum);
    }
    float lanes[kLanes];
    store(lanes, sum);
    for (int64_t i = 0; i < kLanes && strip.column + n + i < c.head_dim; ++i) {
      c.passing[strip.column + n + i] = static_cast<double>(lanes[i]);
    }
  }
}

inline int64_t vector_decay_kept_elements(int64_t head_dim, int64_t head_dim_v) {
  return (head_dim_v + 1) / 2 * 2 * whole_strips(head_dim);
}

inline uint64_t vector_decay_keys(const VectorDecayKeys& c) {
  const VectorDecayKeysScratch scratch(c.scratch, c.head_dim_v, c.num_members);
  const int64_t kept_elements = (c.head_dim_v + 1) / 2 * 2 * kStripWidth;
  spread_prefetch(c.keys.count * (c.rows + c.head_dim_v) / kTileRows[kTileVecs - 1], c.prefetch);
  const auto strip_at = [&](int64_t n) {
    const int64_t strip = c.keys.first + n;
    return KeyStrip{strip * kStripWidth, c.state + strip * kStripWidth * c.head_dim_v,
                    c.kept == nullptr ? nullptr : c.kept + strip * kept_elements};
  };
  for (int64_t n = 0; n < c.keys.count && c.kept != nullptr && !c.is_back; ++n) {
    __builtin_memcpy(strip_at(n).kept, &kNotKept, sizeof(kNotKept));
  }
  if (c.rows < kMinChunkRows || !prepare_keys(c, scratch)) return 0;
  uint64_t done = 0;
  for (int64_t n = 0; n < c.keys.count && n < 64; ++n) {
    const KeyStrip strip = strip_at(n);
    if (!pack_state_strip(strip.state, c.head_dim_v, scratch.right)) continue;
    if (strip.kept != nullptr && c.is_back) begin_sums(c, strip);
    if (strip.kept != nullptr && !c.is_back) {
      __builtin_memcpy(strip.kept, scratch.right, static_cast<size_t>(kept_elements) * 2);
    }
    decay_key_strip(c, scratch, strip);
    if (c.is_back) {
      key_strip(c, scratch, strip);
    } else {
      query_strip(c, scratch, strip);
    }
    done |= uint64_t{1} << n;
  }
  return done;
}

inline int64_t vector_decay_keys_bytes(int64_t head_dim_v, int64_t num_members) {
  return VectorDecayKeysScratch(nullptr, head_dim_v, num_members).bytes;
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
