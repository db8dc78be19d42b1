// SPDX-License-Identifier: Apache-2.0
#pragma once

// dV of a chunk of vector decay, and the gradient X of the state, as products of bf16 pairs: the
// chunk of vector_decay_chunk.hpp, from the last row to the first. With P of that file, whose own
// entries have no bonus here, and X that of the state behind the chunk:
//
//   dV = [K~ P'] [X; dO]      X' = [first..last] X + Q~' dO

#include "cpu/kernels/vector_decay_chunk.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

struct VectorDecayValuesScratch {
  Bf16* k;
  float* k_behind;
  float* decay;        ///< of each block, then of the chunk
  float* q_decayed;    ///< Q~ as floats
  Bf16* q_block;       ///< queries of the second block, decayed since it began
  Bf16* k_transposed;  ///< k_behind of the first block
  float* between;
  Bf16* left;     ///< K~ and behind it P' of the first member
  Bf16* p;        ///< P' of the others
  Bf16* q_pairs;  ///< Q~; of each member
  Bf16* right;    ///< of a strip, X and behind it dO of each member
  int64_t ld_left;
  int64_t state_depth;
  int64_t bytes;

  static constexpr int64_t kRows = 2 * kBlock;

  VectorDecayValuesScratch(char* memory, int64_t head_dim, int64_t num_members) {
    Scratch scratch{memory};
    const int64_t ld = whole_strips(head_dim);
    ld_left = ld + kRows;
    state_depth = (head_dim + 1) / 2 * 2;
    k = scratch.take<Bf16>(kRows * ld);
    k_behind = scratch.take<float>(kRows * ld);
    decay = scratch.take<float>(3 * ld);
    q_decayed = scratch.take<float>(kRows * ld);
    q_block = scratch.take<Bf16>(kBlock * ld);
    k_transposed = scratch.take<Bf16>(kBlock * ld);
    between = scratch.take<float>(kBlock * kBlock);
    left = scratch.take<Bf16>(kRows * ld_left);
    p = scratch.take<Bf16>(num_members * kRows * kRows);
    q_pairs = scratch.take<Bf16>(num_members * kRows * ld);
    right = scratch.take<Bf16>((ld + num_members * kRows) * kStripWidth);
    bytes = scratch.used;
  }

  /// P' of a member, kRows columns.
  Bf16* p_of(int64_t member) const {
    return member == 0 ? left + state_depth : p + member * kRows * kRows;
  }
  int64_t ld_p(int64_t member) const { return member == 0 ? ld_left : kRows; }
};

/// P' within a block: a row for each key.
inline void transposed_block_scores(const KeyBlock& b, Bf16* p, int64_t ld_p) {
  Vf sums[2 * kBlock];
  for (Vf& x : sums) x = zero();
  for (int64_t key = 0; key < b.rows; key += 2) {
    sum_key_pair(b, key, 1, kBlock, sums);
    store_flush(p + key * ld_p, row_sums(sums));
    if (key + 1 < b.rows) store_flush(p + (key + 1) * ld_p, row_sums(sums + kBlock));
  }
}

/// Q~ of a member as floats, the second block's queries, and decays of both blocks. False: some
/// number is not finite.
inline bool decay_value_queries(const VectorDecayValues& c, const float* q,
                                const VectorDecayValuesScratch& scratch) {
  FiniteCheck check;
  for (int64_t column = 0; column < c.ld_k; column += kPairColumns) {
    Vf before[2] = {broadcast(1.0f), broadcast(1.0f)};
    for (int64_t first = 0; first < VectorDecayValuesScratch::kRows; first += kBlock) {
      Vf passed[2] = {broadcast(1.0f), broadcast(1.0f)};
      for (int64_t i = first; i < first + kBlock && i < c.rows; ++i) {
        Vf x[2];
        for (int n = 0; n < 2; ++n) {
          const int64_t at = i * c.ld_k + column + n * kLanes;
          passed[n] = passed[n] * load(c.decay + at);
          x[n] = load(q + at) * passed[n];
          check.add(load(q + at));
          check.add(passed[n]);
          store(scratch.q_decayed + at, x[n] * before[n]);
        }
        if (first == 0) continue;
        store_u(reinterpret_cast<uint32_t*>(scratch.q_block + (i - first) * c.ld_k + column),
                round_neighbours(x[0], x[1]));
      }
      for (int n = 0; n < 2; ++n) {
        float* decay = scratch.decay + column + n * kLanes;
        store(decay + first / kBlock * c.ld_k, passed[n]);
        before[n] = before[n] * passed[n];
        store(decay + 2 * c.ld_k, before[n]);
      }
    }
  }
  return !check.failed();
}

/// P' and Q~ of a member. False: some number is not finite.
inline bool prepare_member(const VectorDecayValues& c, int64_t member,
                           const VectorDecayValuesScratch& scratch) {
  const float* q = c.q + member * c.q_step;
  if (!decay_value_queries(c, q, scratch)) return false;
  Bf16* p = scratch.p_of(member);
  const int64_t ld_p = scratch.ld_p(member);
  for (int64_t first = 0; first < c.rows; first += kBlock) {
    const int64_t rows = first + kBlock < c.rows ? kBlock : c.rows - first;
    const int64_t at = first * c.ld_k;
    transposed_block_scores({q + at, scratch.k + at, c.decay + at, scratch.k_behind + at, c.ld_k,
                             rows, false, nullptr, c.head_dim},
                            p + first * ld_p + first, ld_p);
    for (int64_t j = 0; j < (first == 0 ? kBlock : rows); ++j) {  // what the other block reads
      store_flush(p + (first + j) * ld_p + kBlock - first, zero());
    }
    if (first == 0) continue;
    if (member == 0) transpose_keys(scratch.k_behind, c.ld_k, scratch.k_transposed);
    gemm_bf16(rows, kBlock, c.ld_k, {scratch.q_block, c.ld_k, 2}, scratch.k_transposed, kBlock,
              {.c = scratch.between, .ldc = kBlock});
    Vu x[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) {
      x[i] = i < rows ? as_vu(load(scratch.between + i * kBlock)) : broadcast_u(0);
    }
    transpose(x);
    for (int64_t j = 0; j < kBlock; ++j) store_flush(p + j * ld_p + kBlock, as_vf(x[j]));
  }
  right_from_floats(scratch.q_decayed, c.ld_k, c.rows, c.head_dim, nullptr,
                    scratch.q_pairs + member * VectorDecayValuesScratch::kRows * c.ld_k, c.ld_k);
  return true;
}

/// Keys as pairs, and what does not depend on the strip. False: some number is not finite.
inline bool prepare_values(const VectorDecayValues& c, const VectorDecayValuesScratch& scratch) {
  FiniteCheck check;
  for (int64_t n = 0; n < c.rows * c.ld_k; n += kPairColumns) {
    const Vf x = load(c.k + n);
    const Vf y = load(c.k + n + kLanes);
    check.add(x);
    check.add(y);
    store_u(reinterpret_cast<uint32_t*>(scratch.k + n), round_neighbours(x, y));
  }
  if (check.failed()) return false;
  for (int64_t member = 0; member < c.num_members; ++member) {
    if (!prepare_member(c, member, scratch)) return false;
  }
  for (int64_t j = 0; j < c.rows; ++j) {
    for (int64_t d = 0; d < scratch.state_depth; d += kLanes) {
      Vf x = load(scratch.k_behind + j * c.ld_k + d);
      if (j < kBlock && c.rows > kBlock) x = x * load(scratch.decay + c.ld_k + d);
      Bf16* to = scratch.left + j * scratch.ld_left + d;
      const int64_t rest = scratch.state_depth - d;
      if (rest >= kLanes) {
        store_flush(to, x);
        continue;
      }
      Bf16 line[kLanes];  // P' stands behind
      store_flush(line, x);
      __builtin_memcpy(to, line, static_cast<size_t>(2 * rest));
    }
  }
  return true;
}

/// A strip of values. False: nothing was done.
inline bool vector_decay_values_strip(const VectorDecayValues& c, int64_t strip,
                                      const VectorDecayValuesScratch& scratch) {
  const int64_t column = strip * kStripWidth;
  const int64_t rest = c.head_dim_v - column;
  const int64_t columns = rest < kStripWidth ? rest : kStripWidth;
  float* dstate = c.dstate + column * c.head_dim;
  if (!pack_state_strip(dstate, c.head_dim, scratch.right)) return false;
  const auto dout_of = [&](int64_t member) {
    return scratch.right +
           (scratch.state_depth + member * VectorDecayValuesScratch::kRows) * kStripWidth;
  };
  FiniteCheck check;
  for (int64_t member = 0; member < c.num_members; ++member) {
    const float* dout = c.dout + member * c.dout_step + column;
    for (int64_t i = 0; i < c.rows; ++i) {
      for (int64_t j = 0; j < kStripWidth; j += kLanes) check.add(load(dout + i * c.ld_v + j));
    }
    right_from_floats(dout, c.ld_v, c.rows, kStripWidth, nullptr, dout_of(member), kStripWidth);
  }
  if (check.failed()) return false;
  for (int64_t member = 0; member < c.num_members; ++member) {
    GemmC dv{c.dv + column, c.ld_v};
    dv.accumulate = member > 0;
    dv.prefetch = c.prefetch;
    if (member == 0) {
      gemm_bf16(c.rows, columns, scratch.state_depth + c.rows, {scratch.left, scratch.ld_left, 2},
                scratch.right, kStripWidth, dv);
    } else {
      gemm_bf16(c.rows, columns, c.rows, {scratch.p_of(member), scratch.ld_p(member), 2},
                dout_of(member), kStripWidth, dv);
    }
    GemmC state{dstate, kStripWidth};
    state.accumulate = true;
    state.prefetch = c.prefetch;
    if (member == 0) state.row_scale = scratch.decay + 2 * c.ld_k;
    const Bf16* q = scratch.q_pairs + member * VectorDecayValuesScratch::kRows * c.ld_k;
    gemm_bf16(c.head_dim, columns, c.rows, {q, 2, 2 * c.ld_k}, dout_of(member), kStripWidth, state);
  }
  return true;
}

inline uint64_t vector_decay_values(const VectorDecayValues& c) {
  const VectorDecayValuesScratch scratch(c.scratch, c.head_dim, c.num_members);
  if (c.rows < kMinChunkRows || !prepare_values(c, scratch)) return 0;
  spread_prefetch(c.values.count * (c.rows + c.head_dim) / kTileRows[kTileVecs - 1], c.prefetch);
  uint64_t done = 0;
  for (int64_t n = 0; n < c.values.count && n < 64; ++n) {
    if (vector_decay_values_strip(c, c.values.first + n, scratch)) done |= uint64_t{1} << n;
  }
  return done;
}

inline int64_t vector_decay_values_bytes(int64_t head_dim, int64_t num_members) {
  return VectorDecayValuesScratch(nullptr, head_dim, num_members).bytes;
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
