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

/// Where CTAs take tiles from. It may hold anything before a launch: the first one that needs it
/// finds that it belongs to another launch and clears it, which saves a memset in front.
struct Sm90TileCounter {
  unsigned long long launch;  ///< that it belongs to
  unsigned int num_taken;     ///< less the first tile of each CTA
};

/// The query blocks of packed sequences, those with the most keys first (attention_tiles), in the
/// place of a large grid of as many as the longest sequence has. Heads are divided into sections.
struct Sm90TileList {
  int* num_entries = nullptr;  ///< null: there is no list
  int* entries = nullptr;      ///< batch entry and query block of each
  int capacity = 0;
  int heads_per_section = 1;
};

/// The order of tiles: sections of (batch, head) pairs, within a section the query blocks.
struct Sm90GridParam {
  DivisorParam tiles_per_section, pairs_per_section, pairs_of_last_section, heads, group_size;
  unsigned int last_section = 0;  ///< that begins with this number, and has all pairs left
  int num_m_blocks = 0;
  int num_tiles = 0;
  int descending = 0;                  ///< 1: query blocks with the most keys first
  Sm90TileCounter* counter = nullptr;  ///< null: tiles are dealt out in turns
  unsigned long long launch = 0;       ///< an even number that no other launch has; not 0
  int* next_failed = nullptr;          ///< for each tile that failed: the one that failed before it
  Sm90TileList list;
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
  TensorMapParam bias;  ///< where copies_bias says so
};

/// The shape of a CTA: a warpgroup that copies and `num_warpgroups` that compute 64 rows each.
struct Sm90Shape {
  int head_dim = 64;    ///< padded to 64
  int head_dim_v = 64;  ///< padded to 64; of the part of the columns that a tile sums
  int block_n = 128;
  int num_warpgroups = 2;
  int num_stages = 2;         ///< of keys, and of values
  int num_query_buffers = 2;  ///< more than 1: tiles overlap
  /// Results do not leave through the buffer of their queries, but through memory of the warps,
  /// which store them: the next queries are copied as soon as products of the last are done.
  bool warps_store = false;
  bool makes_terms = false;  ///< what is added to scores by distance (Sm90Terms)
  bool copies_bias = false;  ///< of 16 bits, together with keys

  static constexpr int kTileSlots = 4;
  static constexpr int kTileSlotBytes = 64;
  static constexpr int kAlignment = 1024;
  /// Two chunks of 64 columns of a warp's 16 rows.
  static constexpr int kWarpResultBytes = 2 * 16 * 128;
  static constexpr int kTermStages = 2;

  constexpr int block_m() const { return 64 * num_warpgroups; }
  constexpr int num_threads() const { return 128 * (num_warpgroups + 1); }
  /// 64 columns of a tile; such chunks lie behind each other.
  constexpr int query_chunk_bytes() const { return block_m() * 128; }
  constexpr int key_chunk_bytes() const { return block_n * 128; }
  constexpr int query_bytes() const {
    const int columns = warps_store || head_dim > head_dim_v ? head_dim : head_dim_v;
    return columns / 64 * query_chunk_bytes();
  }
  constexpr int key_bytes() const { return head_dim / 64 * key_chunk_bytes(); }
  constexpr int value_bytes() const { return head_dim_v / 64 * key_chunk_bytes(); }

  constexpr int keys_begin() const { return num_query_buffers * query_bytes(); }
  constexpr int values_begin() const { return keys_begin() + num_stages * key_bytes(); }
  /// Chunks of 32 columns of a bias, rows of 64 bytes.
  static constexpr int kBiasColumns = 32;
  constexpr int bias_chunk_bytes() const { return block_m() * 2 * kBiasColumns; }
  constexpr int bias_bytes() const {
    return copies_bias ? block_n / kBiasColumns * bias_chunk_bytes() : 0;
  }
  constexpr int bias_begin() const { return values_begin() + num_stages * value_bytes(); }
  constexpr int results_begin() const { return bias_begin() + num_stages * bias_bytes(); }
  constexpr int barriers_begin() const {
    return results_begin() + (warps_store ? 4 * num_warpgroups * kWarpResultBytes : 0);
  }
  /// Tiles whose results may be there and not looked at.
  constexpr int num_result_slots() const { return warps_store ? kTileSlots : num_query_buffers; }
  constexpr int num_barriers() const {
    return 2 * num_query_buffers + num_result_slots() + 4 * num_stages + 2 * kTileSlots + 1 +
           (makes_terms ? 2 * kTermStages : 0);
  }
  constexpr int slots_begin() const {
    return (barriers_begin() + num_barriers() * 8 + 31) / 32 * 32;
  }
  /// A flag for each tile whose results are there, and the list of tiles that failed.
  constexpr int flags_begin() const { return slots_begin() + kTileSlots * kTileSlotBytes; }
  constexpr int list_begin() const { return flags_begin() + num_result_slots() * 4; }
  /// A word for each stage: which key block it holds.
  constexpr int blocks_begin() const { return list_begin() + 4; }
  constexpr int end_of_blocks() const { return blocks_begin() + num_stages * 4; }
  /// Terms of a key block, of all distances: twice, so that two neighbours are aligned in one of
  /// both, in other banks.
  constexpr int terms_begin() const { return (end_of_blocks() + 7) / 8 * 8; }
  constexpr int num_terms() const { return block_m() + block_n; }
  constexpr int term_copy_bytes() const { return ((num_terms() + 31) / 32 * 32 + 16) * 4; }
  constexpr int shared_bytes() const {
    return kAlignment +
           (makes_terms ? terms_begin() + kTermStages * 2 * term_copy_bytes() : end_of_blocks());
  }
};

}  // namespace flashtile::device
