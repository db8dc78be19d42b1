// SPDX-License-Identifier: Apache-2.0
//
// What the host hands to the attention kernels: plain data, no functions, so that every
// instruction set sees the same layout and none emits shared code.
#pragma once

#include <cstdint>

#include "flashtile/dtype.hpp"
#include "variant/position_mask.hpp"

namespace flashtile::variant {
struct StripProgram;
}

namespace flashtile::cpu {

/// A run of key blocks (or query blocks) that are all seen in full or all in part.
struct BlockRun {
  int64_t begin;
  int64_t end;
  bool is_full;
};

/// Integers of one (sequence, head) that expressions may read.
struct HeadVariables {
  int64_t batch, head, head_kv, seqlen_q, seqlen_k, query_offset, leftpad;
};

/// Everything that happens to a score between q.k and the softmax, for one (sequence, head).
struct ScoreRules {
  float softmax_scale;
  float softcap;                       ///< 0: none
  const variant::StripProgram* score;  ///< user score; null: none
  const variant::StripProgram* mask;   ///< user mask that is not by position; null: none
  HeadVariables variables;

  const char* bias;  ///< row 0, key 0; null: none
  int64_t bias_row_stride;
  int64_t bias_key_stride;  ///< bytes, as the row stride
  DType bias_dtype;

  bool has_alibi;
  float alibi_slope;

  variant::PositionMask position;
  const uint8_t* block_list;  ///< 1 where listed, (row blocks, num_block_cols); null: none
  int64_t block_rows, block_cols, num_block_cols;

  bool has_dropout;
  uint32_t dropout_threshold;
  float dropout_gain;
  uint64_t dropout_seed;
  uint32_t dropout_offset;
  uint32_t batch_head;

  /// True when a score is scale q.k and nothing else: the softmax may work in powers of two.
  bool is_plain;
};

/// Keys and values of one (sequence, kv head), packed in blocks of block_n rows.
struct PackedKeys {
  int64_t seqlen_k;
  int64_t block_n;
  const char* k_blocks;  ///< K transposed, what S = Q K^T multiplies by
  int64_t k_block_bytes;
  int64_t k_ld;
  const char* v_blocks;  ///< V by rows, what O = P V multiplies by
  int64_t v_block_bytes;
  int64_t v_ld;
  const uint8_t* v_has_nonfinite;  ///< by block
};

/// One query block of one head: attention_fwd_block.
struct FwdBlock {
  const void* const* q_rows;  ///< num_rows pointers
  DType q_dtype;
  int64_t q_stride;  ///< elements
  int64_t q_begin;   ///< index of the first query in its sequence
  int64_t num_rows;
  int64_t head_dim;
  int64_t head_dim_v;
  const PackedKeys* keys;
  const BlockRun* runs;  ///< of key blocks
  int64_t num_runs;
  const ScoreRules* rules;
  float sink;  ///< -inf: none

  void* const* out_rows;
  DType out_dtype;
  int64_t out_stride;  ///< elements
  float* lse;          ///< num_rows, contiguous
  float* max_logit;    ///< one number: largest masked score of the block
  char* weights;       ///< row 0, key 0 of the debug output; null: not wanted
  int64_t weights_row_stride, weights_key_stride;  ///< bytes
  char* scratch;                                   ///< fwd_scratch_bytes
};

/// Sizes that a kernel needs; the same on every instruction set of one vector length.
struct PackShape {
  int64_t k_ld, k_block_bytes;
  int64_t v_ld, v_block_bytes;
};

/// Packs one key block.
struct PackBlock {
  const void* const* k_rows;
  const void* const* v_rows;
  DType dtype;
  int64_t k_stride, v_stride;  ///< elements
  int64_t num_rows;            ///< valid ones, at most block_n
  int64_t block_n;
  int64_t head_dim, head_dim_v;
  char* k_block;
  char* v_block;
  uint8_t* v_has_nonfinite;  ///< one flag, written
};

}  // namespace flashtile::cpu
