// SPDX-License-Identifier: Apache-2.0
//
// What the host hands to the attention kernels: plain data, no functions, so that every
// instruction set sees the same layout and none emits shared code.
#pragma once

#include <cstdint>

#include "flashtile/dtype.hpp"
#include "variant/block_run.hpp"
#include "variant/expr/strip_program.hpp"
#include "variant/position_mask.hpp"

namespace flashtile::cpu {

using variant::BlockRun;

/// A strip program with the inputs of one (sequence, head). Null program: there is none.
struct BoundProgram {
  const variant::StripProgram* program;
  variant::StripInputs inputs;
  int32_t*
      error;  ///< set to 1 + the number of an aux tensor that was read out of its range; or null
};

/// Everything that happens to a score between q.k and the softmax, for one (sequence, head).
struct ScoreRules {
  float softmax_scale;
  float softcap;  ///< 0: none
  /// User score, for tiles that are seen in full and in part; in the backward with the outputs
  /// score, derivative, and (is read, derivative, element) of each site.
  BoundProgram score, guarded_score;
  /// A user score that only adds something to it, the same for all pairs with the same
  /// k_idx - line_shift q_idx: what it adds, and in the backward (is read, derivative, element) of
  /// each site. It has no `score` then. Null program: there is none.
  BoundProgram line;
  int64_t line_shift;
  BoundProgram mask;  ///< what of a user mask is not by position
  int64_t query_offset;

  const char* bias;  ///< row 0, key 0; null: none
  int64_t bias_row_stride;
  int64_t bias_key_stride;  ///< bytes, as the row stride
  DType bias_dtype;

  bool has_alibi;
  float alibi_slope;

  variant::PositionMask position;
  const int64_t* list_first;  ///< of each row block, into list_cols; null: no lists
  const int32_t* list_cols;   ///< listed key blocks, ascending in a row block
  int64_t block_rows, block_cols;

  bool has_dropout;
  uint32_t dropout_threshold;
  float dropout_gain;
  uint64_t dropout_seed;
  uint32_t dropout_offset;
  uint32_t batch_head;

  /// True when a score is scale q.k and nothing else.
  bool is_plain;
  /// True when scores are powers of two (log2 e times what they mean), whose exponential is
  /// cheaper: plain ones, and those to which lines alone are added.
  bool is_log2;
};

/// Where the forms of a packed block lie in it.
struct BlockLayout {
  int64_t block_bytes;
  int64_t offset[4];  ///< of each form; see the pack functions
  int64_t ld[4];
};

/// Keys and values of one (sequence, kv head), packed in blocks of block_n rows.
struct PackedKeys {
  int64_t seqlen_k;
  int64_t block_n;
  const char* blocks;
  BlockLayout layout;              ///< K transposed (for S = Q K^T), V by rows (for O = P V)
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
  bool fetches_keys;  ///< the runs' blocks do not stay in the second cache
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
  char* program_scratch;  ///< strip_bytes of each strip program of the rules
};

/// Rows of two tensors (K and V, or Q and dO) to pack: one block of at most `block_rows` rows, in
/// the forms that a kernel reads. Null rows become zeros.
struct PackRequest {
  const void* const* first_rows;   ///< K or Q
  const void* const* second_rows;  ///< V or dO
  DType first_dtype, second_dtype;
  int64_t first_stride, second_stride;        ///< elements
  const float *first_scales, *second_scales;  ///< by row, of i8 and e4m3; null: 1
  int64_t num_rows;
  int64_t block_rows;
  int64_t head_dim, head_dim_v;
  char* destination;
  uint8_t* has_nonfinite;  ///< one flag, written: V of the forward, K of the backward
};

/// Sums of one site of a gradient program, elements in row-major order.
struct AuxSum {
  double* sums;
  int64_t size;
  bool is_uniform;  ///< a row of keys reads one element
};

/// Where the gradients of what scores read are summed, for one head and key block.
struct ScoreGradients {
  char* bias;  ///< direct: row 0, key 0 of dbias, each element written once; null: not
  int64_t bias_row_stride, bias_key_stride;  ///< bytes
  DType bias_dtype;
  double* bias_columns;  ///< sums over queries by key of the block; null: not
  double* bias_tile;     ///< sums by (row, key) of the one query block; null: not
  int64_t bias_tile_ld;
  double* alibi;      ///< one sum; null: not
  const AuxSum* aux;  ///< by site of the gradient program
  int64_t num_aux;
  const AuxSum* guarded_aux;  ///< by site of its guarded form
  int64_t num_guarded_aux;
};

/// One key block of one head against its query blocks: attention_bwd_block.
struct BwdBlock {
  const char* q_blocks;  ///< packed Q and dO by query block
  BlockLayout q_layout;
  int64_t block_m;
  int64_t seqlen_q;
  const char* k_block;  ///< packed K and V of this key block
  BlockLayout k_layout;
  int64_t block_n;
  int64_t k_begin, num_keys;
  bool k_has_nonfinite;
  int64_t head_dim, head_dim_v;
  const BlockRun* runs;  ///< of query blocks
  int64_t num_runs;
  bool fetches_queries;  ///< the runs' blocks and their dq do not stay in the second cache
  const ScoreRules* rules;
  const float* lse;      ///< by query
  const float* factors;  ///< by query: what exp(s - lse) is multiplied by; null: 1 for all
  const float* delta;    ///< by query: dout . out - dlse
  /// By query; not null: the row sums of exp(s - lse), or of P dP, are added, and nothing else
  /// done.
  double* weight_sums;
  float* delta_sums;
  float* dq;  ///< sums (seqlen_q, dq_ld); null: no products are wanted
  float* dk;  ///< sums (num_keys, dk_ld)
  float* dv;  ///< sums (num_keys, dv_ld)
  int64_t dq_ld, dk_ld, dv_ld;
  const ScoreGradients* gradients;  ///< null: none is wanted
  char* scratch;                    ///< bwd_scratch_bytes
  char* program_scratch;            ///< strip_bytes of each strip program of the rules
};

}  // namespace flashtile::cpu
