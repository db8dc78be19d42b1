// SPDX-License-Identifier: Apache-2.0
//
// What one instruction set offers to the attention launchers: a table of functions over plain data.
#pragma once

#include "cpu/kernels/attention_types.hpp"

namespace flashtile::cpu {

/// The kernels for one kind of operands.
struct OperandKernels {
  BlockLayout (*fwd_key_layout)(int64_t block_n, int64_t head_dim, int64_t head_dim_v);
  int64_t (*fwd_scratch_bytes)(int64_t block_m, int64_t block_n, int64_t head_dim,
                               int64_t head_dim_v);
  void (*fwd_pack_keys)(const PackRequest& request);
  void (*fwd_block)(const FwdBlock& block);

  BlockLayout (*bwd_query_layout)(int64_t block_m, int64_t head_dim, int64_t head_dim_v);
  BlockLayout (*bwd_key_layout)(int64_t block_n, int64_t head_dim, int64_t head_dim_v);
  int64_t (*bwd_scratch_bytes)(int64_t block_m, int64_t block_n, int64_t head_dim);
  void (*bwd_pack_queries)(const PackRequest& request);
  void (*bwd_pack_keys)(const PackRequest& request);
  void (*bwd_block)(const BwdBlock& block);
};

/// Sums of float rows, added in order and stored in another dtype.
struct StoreRows {
  const float* const* parts;  ///< num_parts tiles of the same shape
  int64_t num_parts;
  int64_t ld;
  int64_t num_rows, dim;
  void* const* rows;  ///< null rows are skipped
  DType dtype;
  int64_t stride;  ///< elements
};

struct AttentionKernels {
  OperandKernels operands;  ///< f32 arithmetic; any input dtype
  /// Scratch that a block needs besides, for each strip program that its rules have.
  int64_t (*strip_bytes)(const variant::StripProgram& program);
  void (*store_rows)(const StoreRows& request);
  /// delta[i] = dot(dout row i, out row i); null rows give 0.
  void (*row_dots)(const void* const* dout, DType dout_dtype, int64_t dout_stride,
                   const void* const* out, DType out_dtype, int64_t out_stride, int64_t num_rows,
                   int64_t dim, float* delta);
};

// One for each instruction set that this build has; see src/cpu/registry.cpp.
namespace scalar {
const AttentionKernels& attention_kernels();
}
namespace avx2 {
const AttentionKernels& attention_kernels();
}
namespace avx512 {
const AttentionKernels& attention_kernels();
}
namespace neon {
const AttentionKernels& attention_kernels();
}

// Of an instruction set with a dot product of bf16 pairs: what it adds to the set below it.
namespace avx512_bf16 {
const OperandKernels& attention_pair_kernels();
}
namespace avx512_amx {
const OperandKernels& attention_pair_kernels();
}

}  // namespace flashtile::cpu
