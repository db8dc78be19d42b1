// SPDX-License-Identifier: Apache-2.0
#pragma once

// A chunk of rows of vector decay, forward, as products of bf16 pairs; recurrent_fwd.hpp has the
// recurrence. A chunk has two blocks of at most 16 rows. With d = exp(g), and [i..j] the product of
// the decays of rows i to j, for each key dimension:
//
//   P_ij = sum of q_i [j+1..i] k_j          j <= i, or for ops that read before the row j < i and
//                                           [j+1..i-1], and P_ii = sum of q_i u k_i
//   O = [Q~ P] [S; V]                       Q~: q_i [first..i], decays since the chunk began
//   S' = [first..last] S + K~' V            K~: k_j [j+1..last]
//
// Within a block each key goes on by itself: it decays row by row while queries read it, and what
// is left of it behind the block is what the following one reads; that is a product of matrices
// again, of queries that have decayed since their block began. So there is one exponential for each
// gate, each factor is a product of decays that lie between a key and a query, and a decay of 0
// cuts off what is before it.
//
// 0 times infinity would reach rows that the recurrence keeps apart: where a key, a decay, or of a
// strip a value or the state is not finite, rows are taken one by one.

#include "cpu/kernels/recurrent_fwd.hpp"
#include "cpu/simd/row_sums.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

inline constexpr int64_t kBlock = 16;
/// Below this rows by themselves are as fast.
inline constexpr int64_t kMinChunkRows = 8;
/// Columns that rows of keys have a multiple of: pairs of neighbours come from two vectors.
inline constexpr int64_t kPairColumns = 2 * kLanes;

struct VectorDecayScratch {
  float* q;  ///< times scale; of each member
  Bf16* k;
  float* decay;
  float* k_behind;     ///< keys, decayed to the end of their block
  float* block_decay;  ///< of each block
  float* chunk_decay;
  Bf16* left;          ///< Q~ and behind it P; of each member
  Bf16* q_block;       ///< queries of the second block, decayed since it began
  Bf16* k_transposed;  ///< k_behind of the first block
  Bf16* k_pairs;       ///< K~
  Bf16* right;         ///< of a strip, S and behind it V
  float* between;      ///< P of the second block and keys of the first
  float* out;
  int64_t ld_k;  ///< of floats and of pairs
  int64_t ld_left;
  int64_t state_depth;  ///< rows of S, made even
  int64_t bytes;

  VectorDecayScratch(char* memory, int64_t head_dim, int64_t num_members) {
    Scratch scratch{memory};
    constexpr int64_t kRows = 2 * kBlock;
    ld_k = (head_dim + kPairColumns - 1) / kPairColumns * kPairColumns;
    ld_left = ld_k + kRows;
    state_depth = (head_dim + 1) / 2 * 2;
    q = scratch.take<float>(num_members * (kRows + 1) * ld_k);
    k = scratch.take<Bf16>(kRows * ld_k);
    decay = scratch.take<float>(kRows * ld_k);
    k_behind = scratch.take<float>(kRows * ld_k);
    block_decay = scratch.take<float>(2 * ld_k);
    chunk_decay = scratch.take<float>(ld_k);
    left = scratch.take<Bf16>(num_members * kRows * ld_left);
    q_block = scratch.take<Bf16>(kBlock * ld_k);
    k_transposed = scratch.take<Bf16>(kBlock * ld_k);
    k_pairs = scratch.take<Bf16>(kRows * ld_k);
    right = scratch.take<Bf16>((ld_k + kRows) * kStripWidth);
    between = scratch.take<float>(kBlock * kBlock);
    out = scratch.take<float>(kRows * kStripWidth);
    bytes = scratch.used;
  }

  float* queries(int64_t member) const { return q + member * (2 * kBlock + 1) * ld_k; }
  Bf16* left_of(int64_t member) const { return left + member * 2 * kBlock * ld_left; }
};

/// Finds whether some number is not finite.
struct FiniteCheck {
  Vf zeros = zero();
  FLASHTILE_INLINE void add(Vf x) { zeros = fma(x, zero(), zeros); }
  FLASHTILE_INLINE bool failed() const { return !all(zeros == zero()); }
};

/// False: rows have to be taken one by one.
inline bool pack_vector_decay(const RecurrentChunk& c, const VectorDecayScratch& scratch) {
  const int64_t ld = scratch.ld_k;
  const RowList keys(c.k, c.rows);
  if (pack_rows_bf16({keys.rows, c.k.dtype, c.k.stride}, c.rows, c.head_dim, scratch.k, ld)) {
    return false;
  }
  pack_chunk_rows(c.g, c.rows, c.head_dim, 1.0f, scratch.decay, ld);
  FiniteCheck check;
  for (int64_t n = 0; n < c.rows * ld; n += kPairColumns) {
    const Vf x = exp2(load(scratch.decay + n) * broadcast(kLog2e));
    const Vf y = exp2(load(scratch.decay + n + kLanes) * broadcast(kLog2e));
    check.add(x);
    check.add(y);
    store(scratch.decay + n, x);
    store(scratch.decay + n + kLanes, y);
  }
  if (check.failed()) return false;
  for (int64_t member = 0; member < c.num_members; ++member) {
    pack_chunk_rows(c.q[member], c.rows, c.head_dim, c.scale, scratch.queries(member), ld);
  }
  return true;
}

/// Two neighbouring keys of a block, from some column on: they decay row by row, and what row i of
/// `q` reads of them is put or added to its two sums.
template <int kVecs>
FLASHTILE_INLINE void read_keys(const float* q, const Bf16* k, const float* decay, int64_t ld,
                                int64_t rows, int64_t key, bool adds, int64_t row_step,
                                int64_t key_step, Vf* sums, float* k_behind) {
  StripVectors<kVecs> a, b, x;
  const auto load_row = [](const auto* row, StripVectors<kVecs>& to) {
    FLASHTILE_UNROLL
    for (int n = 0; n < kVecs; ++n) to[n] = load(row + n * kLanes);
  };
  const auto decay_by = [](const StripVectors<kVecs>& d, StripVectors<kVecs>& to) {
    FLASHTILE_UNROLL
    for (int n = 0; n < kVecs; ++n) to[n] = to[n] * d[n];
  };
  const auto read = [&](const StripVectors<kVecs>& by, Vf* sum) {
    Vf products = adds ? *sum : zero();
    FLASHTILE_UNROLL
    for (int n = 0; n < kVecs; ++n) products = fma(x[n], by[n], products);
    *sum = products;
  };
  const auto store_row = [&](const StripVectors<kVecs>& from, int64_t j) {
    FLASHTILE_UNROLL
    for (int n = 0; n < kVecs; ++n) store(k_behind + j * ld + n * kLanes, from[n]);
  };
  load_row(k + key * ld, a);
  load_row(q + key * ld, x);
  read(a, &sums[key * row_step]);
  if (key + 1 == rows) return store_row(a, key);
  load_row(decay + (key + 1) * ld, x);
  decay_by(x, a);
  load_row(k + (key + 1) * ld, b);
  load_row(q + (key + 1) * ld, x);
  read(a, &sums[(key + 1) * row_step]);
  read(b, &sums[(key + 1) * row_step + key_step]);
  for (int64_t i = key + 2; i < rows; ++i) {
    load_row(decay + i * ld, x);
    decay_by(x, a);
    decay_by(x, b);
    load_row(q + i * ld, x);
    read(a, &sums[i * row_step]);
    read(b, &sums[i * row_step + key_step]);
  }
  store_row(a, key);
  store_row(b, key + 1);
}

/// Rows of a block, from its first one on.
struct KeyBlock {
  const float* q;
  const Bf16* k;
  const float* decay;
  float* k_behind;
  int64_t ld;
  int64_t rows;
  bool reads_before;   ///< queries are of the state before their row
  const float* bonus;  ///< head_dim weights of a row's own key; may be null
  int64_t head_dim;
};

/// Two keys of a block by all its rows, and by themselves with a bonus: row i reads
/// sums[i * row_step + n * key_step] of key + n.
inline void sum_key_pair(const KeyBlock& b, int64_t key, int64_t row_step, int64_t key_step,
                         Vf* sums) {
  // What reads before a row is decayed by the rows before that.
  const int64_t shift = b.reads_before ? 1 : 0;
  for (int64_t i = 0; i < key + shift; ++i) {
    sums[i * row_step] = zero();
    sums[i * row_step + key_step] = zero();
  }
  sums[(key + shift) * row_step + key_step] = zero();
  int64_t column = 0;
  const auto read = [&]<int kVecs>() {
    read_keys<kVecs>(b.q + column + shift * b.ld, b.k + column, b.decay + column, b.ld, b.rows, key,
                     column > 0, row_step, key_step, sums + shift * row_step, b.k_behind + column);
    column += kVecs * kLanes;
  };
  while (column + 8 * kLanes <= b.ld) read.template operator()<8>();
  while (column + 4 * kLanes <= b.ld) read.template operator()<4>();
  while (column < b.ld) read.template operator()<2>();
  for (int64_t i = key; b.bonus != nullptr && i < key + 2 && i < b.rows; ++i) {
    Vf own = zero();
    for (int64_t d = 0; d < b.ld; d += kLanes) {
      const int64_t at = i * b.ld + d;
      const Vf weight = load_partial(b.bonus + d, b.head_dim - d);
      own = fma(load(b.q + at) * load(b.k + at), weight, own);
    }
    sums[i * row_step + (i - key) * key_step] = own;
  }
}

/// P within a block, to columns from p on, and the keys behind it.
inline void block_scores(const KeyBlock& b, Bf16* p, int64_t ld_p) {
  Vf sums[2 * (kBlock + 1)];
  Vu pairs[kBlock];  // of two keys, of each row
  for (Vf& x : sums) x = zero();
  for (Vu& x : pairs) x = broadcast_u(0);
  for (int64_t key = 0; key < b.rows; key += 2) {
    sum_key_pair(b, key, 2, 1, sums);
    Bf16 words[2 * kBlock];
    store_flush(words, row_sums(sums));
    store_flush(words + kBlock, row_sums(sums + kBlock));
    __builtin_memcpy(&pairs[key / 2], words, sizeof(words));
  }
  transpose(pairs);
  for (int64_t i = 0; i < b.rows; ++i) {
    store_u_partial(reinterpret_cast<uint32_t*>(p + i * ld_p), pairs[i], kBlock / 2);
  }
}

/// Q~, of the second block q_block, and the block's decay.
inline void decay_queries(const RecurrentChunk& c, const VectorDecayScratch& scratch, int64_t block,
                          int64_t rows, const float* q, Bf16* left) {
  const int64_t ld = scratch.ld_k;
  const int64_t first = block * kBlock;
  for (int64_t column = 0; column < ld; column += kPairColumns) {
    Vf passed[2], before[2];
    for (int n = 0; n < 2; ++n) {
      passed[n] = broadcast(1.0f);
      before[n] = load(scratch.block_decay + column + n * kLanes);
    }
    for (int64_t i = 0; i < rows; ++i) {
      Vf x[2];
      for (int n = 0; n < 2; ++n) {
        const int64_t at = (first + i) * ld + column + n * kLanes;
        const Vf behind = passed[n] * load(scratch.decay + at);
        x[n] = load(q + at) * (c.reads_before ? passed[n] : behind);
        passed[n] = behind;
      }
      if (block > 0) {
        store_u(reinterpret_cast<uint32_t*>(scratch.q_block + i * ld + column),
                round_neighbours(x[0], x[1]));
        for (int n = 0; n < 2; ++n) x[n] = x[n] * before[n];
      }
      store_u(reinterpret_cast<uint32_t*>(left + (first + i) * scratch.ld_left + column),
              round_neighbours(x[0], x[1]));
    }
    for (int n = 0; n < 2; ++n) {
      store(scratch.block_decay + block * ld + column + n * kLanes, passed[n]);
    }
  }
}

/// Keys of the first block as the second one reads them.
inline void transpose_keys(const float* k_behind, int64_t ld, Bf16* transposed) {
  for (int64_t column = 0; column < ld; column += kPairColumns) {
    Vu x[kBlock];
    for (int64_t j = 0; j < kBlock; ++j) {
      const float* key = k_behind + j * ld + column;
      x[j] = round_neighbours(load(key), load(key + kLanes));
    }
    transpose(x);
    for (int64_t n = 0; n < kLanes; ++n) {
      store_u(reinterpret_cast<uint32_t*>(transposed + (column + 2 * n) * kBlock), x[n]);
    }
  }
}

/// K~ and the chunk's decay.
inline void decay_keys(int64_t rows, const VectorDecayScratch& scratch) {
  const int64_t ld = scratch.ld_k;
  for (int64_t d = 0; d < ld; d += kLanes) {
    const Vf second = rows > kBlock ? load(scratch.block_decay + ld + d) : broadcast(1.0f);
    store(scratch.chunk_decay + d, load(scratch.block_decay + d) * second);
    for (int64_t j = 0; j < rows; j += 2) {
      const Vf factor = j < kBlock ? second : broadcast(1.0f);
      const float* key = scratch.k_behind + j * ld + d;
      const Vf x = load(key) * factor;
      const Vf y = j + 1 < rows ? load(key + ld) * factor : zero();
      store_u(reinterpret_cast<uint32_t*>(scratch.k_pairs + j * ld + 2 * d), round_to_pairs(x, y));
    }
  }
}

/// A strip of the state as the upper part of the right side. False: it is not finite.
inline bool pack_state_strip(const float* strip, int64_t head_dim, Bf16* right) {
  FiniteCheck check;
  for (int64_t i = 0; i < head_dim; i += 2) {
    for (int64_t j = 0; j < kStripWidth; j += kLanes) {
      const Vf x = load(strip + i * kStripWidth + j);
      const Vf y = i + 1 < head_dim ? load(strip + (i + 1) * kStripWidth + j) : zero();
      check.add(x);
      check.add(y);
      store_u(reinterpret_cast<uint32_t*>(right + i * kStripWidth + 2 * j), round_to_pairs(x, y));
    }
  }
  return !check.failed();
}

/// Strip n of the chunk. False: nothing was done.
inline bool vector_decay_strip(const RecurrentChunk& c, const VectorDecayScratch& scratch,
                               int64_t n, RowPrefetch* prefetch) {
  const int64_t column = (c.first_strip + n) * kStripWidth;
  const int64_t rest = c.head_dim_v - column;
  const int64_t columns = rest < kStripWidth ? rest : kStripWidth;
  float* state = c.strips + n * c.head_dim * kStripWidth;
  Bf16* values = scratch.right + scratch.state_depth * kStripWidth;
  const auto size = [](const ChunkRows& rows) { return rows.dtype == DType::kF32 ? 4 : 2; };
  ChunkRows v = c.v;
  v.data += column * v.stride * size(v);
  const RowList value_rows(v, c.rows);
  if (pack_pairs({value_rows.rows, v.dtype, v.stride}, c.rows, columns, values, kStripWidth) ||
      !pack_state_strip(state, c.head_dim, scratch.right)) {
    return false;
  }
  for (int64_t member = 0; member < c.num_members; ++member) {
    for (int64_t first = 0; first < c.rows; first += kBlock) {
      const int64_t end = first + kBlock < c.rows ? first + kBlock : c.rows;
      gemm_bf16(end - first, columns, scratch.state_depth + end,
                {scratch.left_of(member) + first * scratch.ld_left, scratch.ld_left, 2},
                scratch.right, kStripWidth,
                {.c = scratch.out + first * kStripWidth, .ldc = kStripWidth, .prefetch = prefetch});
    }
    ChunkRows target = c.out[member];
    target.data += column * target.stride * size(target);
    store_chunk_rows(scratch.out, kStripWidth, c.rows, columns, target);
  }
  gemm_bf16(c.head_dim, columns, c.rows, {scratch.k_pairs, 2, 2 * scratch.ld_k}, values,
            kStripWidth,
            {.c = state,
             .ldc = kStripWidth,
             .accumulate = true,
             .row_scale = scratch.chunk_decay,
             .prefetch = prefetch});
  return true;
}

inline void vector_decay_fwd_chunk(const RecurrentChunk& c) {
  const int64_t rows_bytes =
      recurrent_scratch_bytes(c.max_rows, c.head_dim, c.head_dim_v, c.num_members);
  VectorDecayScratch scratch(c.scratch + rows_bytes, c.head_dim, c.num_members);
  if (c.rows < kMinChunkRows || !pack_vector_decay(c, scratch)) return c.fwd_rows(c);
  const int64_t ld = scratch.ld_k;
  for (int64_t member = 0; member < c.num_members; ++member) {
    const float* q = scratch.queries(member);
    Bf16* left = scratch.left_of(member);
    for (int64_t block = 0; block * kBlock < c.rows; ++block) {
      const int64_t first = block * kBlock;
      const int64_t rows = first + kBlock < c.rows ? kBlock : c.rows - first;
      Bf16* p = left + first * scratch.ld_left + scratch.state_depth;
      decay_queries(c, scratch, block, rows, q, left);
      block_scores({q + first * ld, scratch.k + first * ld, scratch.decay + first * ld,
                    scratch.k_behind + first * ld, ld, rows, c.reads_before, c.bonus, c.head_dim},
                   p + first, scratch.ld_left);
      if (block == 0) continue;
      if (member == 0) transpose_keys(scratch.k_behind, ld, scratch.k_transposed);
      gemm_bf16(rows, kBlock, ld, {scratch.q_block, ld, 2}, scratch.k_transposed, kBlock,
                {.c = scratch.between, .ldc = kBlock});
      for (int64_t i = 0; i < rows; ++i) {
        store_flush(p + i * scratch.ld_left, load(scratch.between + i * kBlock));
      }
    }
  }
  decay_keys(c.rows, scratch);
  RowPrefetch prefetch = recurrent_prefetch(c);
  spread_prefetch(c.num_strips * (c.rows + c.head_dim) / kTileRows[kTileVecs - 1], &prefetch);
  for (int64_t n = 0; n < c.num_strips; ++n) {
    if (vector_decay_strip(c, scratch, n, &prefetch)) continue;
    RecurrentChunk strip = c;
    strip.first_strip += n;
    strip.num_strips = 1;
    strip.strips += n * c.head_dim * kStripWidth;
    c.fwd_rows(strip);
  }
}

inline int64_t vector_decay_scratch_bytes(int64_t max_rows, int64_t head_dim, int64_t head_dim_v,
                                          int64_t num_members) {
  return recurrent_scratch_bytes(max_rows, head_dim, head_dim_v, num_members) +
         VectorDecayScratch(nullptr, head_dim, num_members).bytes;
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
