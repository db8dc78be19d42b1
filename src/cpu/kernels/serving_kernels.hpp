// SPDX-License-Identifier: Apache-2.0
//
// What one instruction set offers for serving: attention of a few queries over keys that are read
// once, where they lie, and joining of partial results. Plain data and a table of functions.
#pragma once

#include <cstdint>

#include "cpu/kernels/attention_types.hpp"

namespace flashtile::cpu {

/// Keys of a decode tile at most.
inline constexpr int64_t kDecodeKeys = 64;

/// How much of a tile the queries of a head see.
enum class TileCover : uint8_t { kNone, kPart, kFull };

/// Lanes of the widest vectors.
inline constexpr int64_t kMaxLanes = 16;

/// Softmax state of the rows of one group over some keys: sums not divided yet.
struct DecodeState {
  float* out;       ///< (rows, out_ld)
  float* row_max;   ///< the reference that exponentials are taken against
  float* row_sums;  ///< of exponentials, (rows, lanes): room for kMaxLanes each
  float* row_tops;  ///< largest scores so far, the same
};

/// Query rows to load in the form that tiles read.
struct DecodeQueries {
  const void* const* rows;
  DType dtype;
  int64_t stride;  ///< elements
  int64_t num_rows;
  int64_t head_dim;
  float* q;  ///< room for (num_rows, q_ld)
  int64_t q_ld;
};

/// One kv head of a tile. Row g * seqlen_q + i of its group is query i of the group's head g.
struct DecodeHead {
  bool is_seen;                    ///< by some head of the group; else nothing is done
  bool is_first;                   ///< the state holds nothing yet
  const float* q;                  ///< of decode_queries, (rows, q_ld)
  const ScoreRules* const* rules;  ///< by head of the group
  const TileCover* cover;          ///< likewise
  DecodeState state;
};

/// One tile of keys for some kv heads, whose rows lie a constant distance apart. Elements of a row
/// lie next to each other.
struct DecodeTile {
  const char* const* k_rows;  ///< of the first head: num_keys pointers
  const char* const* v_rows;
  const char* const* next_k_rows;  ///< the tile that follows: num_next >= 1 pointers
  const char* const* next_v_rows;
  int64_t num_next;
  int64_t k_head_stride, v_head_stride;  ///< bytes
  DType dtype;                           ///< of the keys
  int64_t k_begin, num_keys;
  int64_t head_dim, head_dim_v;
  int64_t q_ld, out_ld;
  int64_t seqlen_q, group_size;
  const DecodeHead* heads;
  int64_t num_heads;
  /// Of i8 and e4m3: what keys and values are multiplied by, (num_heads, kDecodeKeys); null: 1.
  const float *k_scales, *v_scales;
  char* scratch;  ///< decode_scratch_bytes
};

/// Joins the parts of a group's rows, in order, and writes out and lse.
struct DecodeFinish {
  const DecodeState* parts;
  int64_t num_parts;
  int64_t num_rows, head_dim_v, out_ld;
  float unit;         ///< one unit of score in natural logarithms
  float gain;         ///< of dropout
  const float* sink;  ///< by row, natural; null: none
  void* const* out_rows;
  DType out_dtype;
  int64_t out_stride;  ///< elements
  float* lse;          ///< by row
  float* max_logit;    ///< by row
};

/// out = sum of weights[p] * part p. Parts with a null pointer are left out.
struct MergeRowRequest {
  const void* const* parts;
  const float* weights;
  int64_t num_parts;
  int64_t dim;
  DType dtype;
  int64_t stride;  ///< elements
  void* out;
  DType out_dtype;
  int64_t out_stride;  ///< elements
};

struct DecodeKernels {
  /// Row length of q and out of a decode tile.
  int64_t (*decode_ld)(int64_t dim);
  /// `num_rows` of each head of a tile.
  int64_t (*decode_scratch_bytes)(int64_t num_heads, int64_t num_rows, int64_t head_dim,
                                  int64_t head_dim_v);
  void (*decode_queries)(const DecodeQueries& queries);
  void (*decode_tile)(const DecodeTile& tile);
  void (*decode_finish)(const DecodeFinish& request);
};

struct ServingKernels {
  DecodeKernels decode;  ///< f32 arithmetic; any dtype
  void (*merge_row)(const MergeRowRequest& request);
};

// One for each instruction set that this build has; see src/cpu/registry.cpp.
namespace scalar {
const ServingKernels& serving_kernels();
}
namespace avx2 {
const ServingKernels& serving_kernels();
}
namespace avx512 {
const ServingKernels& serving_kernels();
}
namespace neon {
const ServingKernels& serving_kernels();
}

// Of an instruction set with a dot product of bf16 pairs: what it adds to the set below it, for
// queries of bf16.
namespace avx512_bf16 {
const DecodeKernels& decode_pair_kernels();
}

}  // namespace flashtile::cpu
