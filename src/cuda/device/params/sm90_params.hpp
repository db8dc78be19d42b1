// SPDX-License-Identifier: Apache-2.0
//
// Arguments of attention_fwd_sm90 and how it lays out shared memory, for host and device.
#pragma once

#include "cuda/device/params/attention_params.hpp"
#include "cuda/device/params/tensor_map.hpp"

namespace flashtile::device {

/// How softmax finds the number that is subtracted from logits.
enum class Sm90Reference {
  kMaximum,     ///< follows the maximum where it has grown too far
  kFirstBlock,  ///< the maximum of the first blocks of a row, then stays
  kZero,        ///< none
};

/// The order of tiles: sections of (batch, head) pairs, within a section the query blocks.
struct Sm90GridParam {
  DivisorParam tiles_per_section, pairs_per_section, pairs_of_last_section, heads, group_size;
  unsigned int num_pairs = 0;
  int num_m_blocks = 0;
  int num_tiles = 0;
  int descending = 0;  ///< 1: query blocks with the most keys first
  /// Tiles that were taken from the common list, less the first of each CTA; null: tiles are dealt
  /// out in turns.
  unsigned int* num_taken = nullptr;
  int* next_failed = nullptr;  ///< for each tile that failed: the one that failed before it
};

struct Sm90ForwardParams {
  TensorMapParam q, k, v, out;
  Sm90GridParam grid;
  /// What all forward kernels are given. `grid` in it is the map of blocks' alone.
  AttentionParams call;
  int seqlen_q = 0;
  int seqlen_k = 0;  ///< those that some query sees
  /// Row q sees keys up to q + diagonal; with masks by position only.
  int diagonal = 0;
  int lower = 0;    ///< row q sees keys from q + lower on
  int offset = 0;   ///< with chunks: row q's position is q + offset
  int chunk = 1;    ///< positions of a chunk
  float scale = 1;  ///< of products, or of capped ones, to powers of two; positive
  /// Capped logits in powers of two are a (c0 + c1 a^2 + c2 a^4 + c3 a^6) for products a whose
  /// fourth powers add up to at most `small_products`.
  float cap_line[4] = {};
  float small_products = 0;
  /// The same by two coefficients, to what bf16 weights tell apart.
  float short_cap_line[2] = {};
  float tiny_products = 0;
};

/// The shape of a CTA: a warpgroup that copies and `num_warpgroups` that compute 64 rows each.
struct Sm90Shape {
  int head_dim = 64;    ///< padded to 64
  int head_dim_v = 64;  ///< padded to 64
  int block_n = 128;
  int num_warpgroups = 2;
  int num_stages = 2;         ///< of keys, and of values
  int num_query_buffers = 2;  ///< results leave through them; 2: tiles overlap

  static constexpr int kTileSlots = 4;
  static constexpr int kTileSlotBytes = 64;
  static constexpr int kAlignment = 1024;

  constexpr int block_m() const { return 64 * num_warpgroups; }
  constexpr int num_threads() const { return 128 * (num_warpgroups + 1); }
  /// 64 columns of a tile; such chunks lie behind each other.
  constexpr int query_chunk_bytes() const { return block_m() * 128; }
  constexpr int key_chunk_bytes() const { return block_n * 128; }
  constexpr int query_bytes() const {
    return (head_dim > head_dim_v ? head_dim : head_dim_v) / 64 * query_chunk_bytes();
  }
  constexpr int key_bytes() const { return head_dim / 64 * key_chunk_bytes(); }
  constexpr int value_bytes() const { return head_dim_v / 64 * key_chunk_bytes(); }

  constexpr int keys_begin() const { return num_query_buffers * query_bytes(); }
  constexpr int values_begin() const { return keys_begin() + num_stages * key_bytes(); }
  constexpr int barriers_begin() const { return values_begin() + num_stages * value_bytes(); }
  constexpr int num_barriers() const {
    return 3 * num_query_buffers + 4 * num_stages + 2 * kTileSlots + 1;
  }
  constexpr int slots_begin() const {
    return (barriers_begin() + num_barriers() * 8 + 31) / 32 * 32;
  }
  /// A flag for each query buffer, and the list of tiles that failed.
  constexpr int flags_begin() const { return slots_begin() + kTileSlots * kTileSlotBytes; }
  /// A word for each stage: which key block it holds.
  constexpr int blocks_begin() const { return flags_begin() + 16; }
  constexpr int shared_bytes() const { return blocks_begin() + num_stages * 4 + kAlignment; }
};

}  // namespace flashtile::device
