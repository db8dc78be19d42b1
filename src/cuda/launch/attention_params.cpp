// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch/attention_params.hpp"

#include <algorithm>
#include <cstring>

#include "cuda/plan/user_expressions.hpp"
#include "cuda/runtime/tensor_map.hpp"
#include "flashtile/error.hpp"
#include "ops/attention/variant.hpp"
#include "variant/position_mask.hpp"

namespace flashtile::cuda {
namespace {

int64_t stride_bytes(const TensorView& tensor, int dim) {
  return tensor.strides[static_cast<size_t>(dim)] * dtype_bytes(tensor.dtype);
}

int64_t broadcast_stride(const TensorView& tensor, int dim) {
  return tensor.shape[static_cast<size_t>(dim)] == 1 ? 0 : stride_bytes(tensor, dim);
}

/// The stride of what is there once may be anything; the copy engine wants a multiple of 16 bytes.
constexpr int64_t kGoodStride = 64;

device::TensorMapParam encode(TensorMapSpec spec) {
  spec.promotion = driver::kPromote256;
  const driver::TensorMapBytes bytes = encode_tensor_map(spec);
  device::TensorMapParam param;
  static_assert(sizeof param.bytes == sizeof bytes);
  std::memcpy(param.bytes, &bytes, sizeof param.bytes);
  return param;
}

device::IntsParam ints_param(const TensorView& tensor) {
  if (!tensor) return {};
  return {static_cast<const char*>(tensor.data), stride_bytes(tensor, 0)};
}

}  // namespace

device::LengthsParam lengths_param(const AttentionProblem& problem, const AttentionArgs& args) {
  device::LengthsParam lengths;
  lengths.cu_seqlens_q = ints_param(args.cu_seqlens_q);
  lengths.cu_seqlens_k = ints_param(args.cu_seqlens_k);
  lengths.seqused_k = ints_param(args.seqused_k);
  lengths.leftpad_k = ints_param(args.leftpad_k);
  lengths.cache_batch_idx = ints_param(args.cache_batch_idx);
  if (args.block_table) {
    lengths.block_table = static_cast<const char*>(args.block_table.data);
    lengths.table_batch_stride = stride_bytes(args.block_table, 0);
    lengths.table_stride = stride_bytes(args.block_table, 1);
  }
  lengths.batch_size = static_cast<int>(problem.batch_size);
  lengths.max_seqlen_q = static_cast<int>(problem.max_seqlen_q);
  lengths.max_seqlen_k = static_cast<int>(problem.max_seqlen_k);
  lengths.page_size = divisor_param(problem.page_size);
  lengths.num_lines = static_cast<int>(problem.is_packed_k ? 1 : args.k.shape[0]);
  lengths.total_q = problem.total_q;
  lengths.total_k = problem.total_k;
  lengths.cu_seqlens_new = ints_param(args.cu_seqlens_new);
  lengths.seqlen_new = static_cast<int>(problem.max_seqlen_new);
  lengths.total_new = static_cast<int>(args.cu_seqlens_new ? args.k_new.shape[0] : 0);
  return lengths;
}

device::PositionParam position_param(const AttentionProblem& problem) {
  constexpr int64_t kUnbounded = variant::PositionMask::kUnbounded;
  device::PositionParam position;
  position.has_query_offset = problem.query_offset.has_value();
  position.query_offset = problem.query_offset.value_or(0);
  position.lower = -std::min(problem.window_left.value_or(kUnbounded), kUnbounded);
  position.upper = std::min(problem.window_right.value_or(kUnbounded), kUnbounded);
  position.chunk = std::min(problem.attention_chunk.value_or(0), kUnbounded);
  return position;
}

device::DivisorParam divisor_param(int64_t value) {
  device::DivisorParam divisor;
  divisor.value = static_cast<uint32_t>(std::clamp<int64_t>(value, 1, INT32_MAX));
  const uint64_t by = divisor.value;
  while ((uint64_t{1} << divisor.shift) < by) ++divisor.shift;
  divisor.magic = static_cast<uint32_t>((((uint64_t{1} << divisor.shift) - by) << 32) / by + 1);
  return divisor;
}

void set_sections(device::GridParam& grid, int64_t num_pairs, int64_t num_units, int64_t section) {
  const int64_t pairs = std::max<int64_t>(section, 1);
  const int64_t left = num_pairs % pairs;
  grid.ctas_per_section = divisor_param(pairs * num_units);
  grid.pairs_per_section = divisor_param(pairs);
  grid.pairs_of_last_section = divisor_param(left > 0 ? left : pairs);
  grid.num_pairs = static_cast<unsigned int>(num_pairs);
}

device::RowsParam rows_param(const TensorView& tensor) {
  if (!tensor) return {};
  const int first = tensor.ndim - 3;  // dimension of the rows
  return {static_cast<char*>(tensor.data), first == 1 ? stride_bytes(tensor, 0) : 0,
          stride_bytes(tensor, first), stride_bytes(tensor, first + 1),
          stride_bytes(tensor, first + 2)};
}

device::RowScalarsParam row_scalars_param(const TensorView& tensor) {
  if (!tensor) return {};
  const int first = tensor.ndim - 2;  // dimension of the heads
  return {static_cast<float*>(tensor.data), first == 1 ? stride_bytes(tensor, 0) : 0,
          stride_bytes(tensor, first), stride_bytes(tensor, first + 1)};
}

device::HeadScalarsParam head_scalars_param(const TensorView& tensor) {
  if (!tensor) return {};
  const bool has_batch = tensor.ndim == 2;
  return {static_cast<float*>(tensor.data), has_batch ? stride_bytes(tensor, 0) : 0,
          stride_bytes(tensor, has_batch ? 1 : 0)};
}

device::ScoresParam scores_param(const TensorView& tensor) {
  if (!tensor) return {};
  return {static_cast<char*>(tensor.data), broadcast_stride(tensor, 0), broadcast_stride(tensor, 1),
          broadcast_stride(tensor, 2), stride_bytes(tensor, 3)};
}

device::TensorMapParam row_boxes(const TensorView& tensor, int box_rows) {
  constexpr int32_t kChunkColumns = 64;
  TensorMapSpec spec;
  spec.dtype = tensor.dtype;
  spec.data = tensor.data;
  spec.ndim = 4;
  // Packed ones are of one batch.
  const size_t first = tensor.ndim == 4 ? 1 : 0;
  const size_t order[] = {first + 2, first, first + 1, 0};
  for (size_t i = 0; i < 4; ++i) {
    spec.shape[i] = i == 3 && tensor.ndim == 3 ? 1 : tensor.shape[order[i]];
    spec.strides[i] = spec.shape[i] == 1 ? kGoodStride : tensor.strides[order[i]];
  }
  spec.strides[0] = 1;
  spec.box = {kChunkColumns, box_rows, 1, 1, 1};
  spec.swizzle = driver::kSwizzle128;
  return encode(spec);
}

device::TensorMapParam bias_boxes(const TensorView& bias, int box_rows, int box_columns) {
  TensorMapSpec spec;
  spec.dtype = bias.dtype;
  spec.data = bias.data;
  spec.ndim = 4;
  for (size_t i = 0; i < 4; ++i) {
    const int64_t stride = bias.strides[3 - i];
    spec.shape[i] = stride == 0 ? 1 : bias.shape[3 - i];
    spec.strides[i] = spec.shape[i] == 1 ? kGoodStride : stride;
  }
  spec.strides[0] = 1;
  spec.box = {box_columns, box_rows, 1, 1, 1};
  spec.swizzle = driver::kSwizzle64;
  return encode(spec);
}

device::AuxParam aux_param(const TensorView& tensor) {
  device::AuxParam aux;
  aux.data = static_cast<const char*>(tensor.data);
  aux.element_bytes = static_cast<int>(dtype_bytes(tensor.dtype));
  aux.ndim = tensor.ndim;
  for (int d = 0; d < tensor.ndim; ++d) {
    aux.shape[d] = tensor.shape[static_cast<size_t>(d)];
    aux.strides[d] = stride_bytes(tensor, d);
  }
  return aux;
}

device::BlocksParam blocks_param(const AttentionArgs& args, const BlockMapPlan& plan,
                                 unsigned int* listed, unsigned int* map) {
  device::BlocksParam blocks;
  blocks.map = map;
  blocks.map_batches = static_cast<int>(plan.map_batches);
  blocks.map_heads = static_cast<int>(plan.map_heads);
  blocks.map_words = static_cast<int>(plan.map_words);
  if (!args.block_counts) return blocks;
  const device::ScoresParam counts = scores_param(args.block_counts);
  const device::ScoresParam indices = scores_param(args.block_indices);
  blocks.counts = counts.data;
  blocks.counts_batch_stride = counts.batch_stride;
  blocks.counts_head_stride = counts.head_stride;
  blocks.counts_row_stride = counts.row_stride;
  blocks.indices = indices.data;
  blocks.indices_batch_stride = indices.batch_stride;
  blocks.indices_head_stride = indices.head_stride;
  blocks.indices_row_stride = indices.row_stride;
  blocks.indices_entry_stride = indices.key_stride;
  blocks.max_entries = static_cast<int>(args.block_indices.shape[3]);
  blocks.block_rows = args.block_rows;
  blocks.block_cols = args.block_cols;
  blocks.listed = listed;
  blocks.list_batches = static_cast<int>(plan.list_batches);
  blocks.list_heads = static_cast<int>(plan.list_heads);
  blocks.list_rows = static_cast<int>(plan.list_rows);
  blocks.list_cols = static_cast<int>(plan.list_cols);
  blocks.list_words = static_cast<int>(plan.list_words);
  return blocks;
}

device::AttentionParams attention_params(const AttentionProblem& problem,
                                         const AttentionArgs& args) {
  device::AttentionParams params;
  params.q = rows_param(args.q);
  params.k = rows_param(args.k);
  params.v = rows_param(args.v);
  params.out = rows_param(args.out);
  params.lse = row_scalars_param(args.lse);
  params.bias = scores_param(args.bias);
  params.alibi_slopes = head_scalars_param(args.alibi_slopes);
  params.sink = head_scalars_param(args.sink);
  params.max_logit = head_scalars_param(args.max_logit);
  params.k_scale = head_scalars_param(args.k_scale);
  params.v_scale = head_scalars_param(args.v_scale);
  params.lengths = lengths_param(problem, args);
  params.position = position_param(problem);
  params.dropout.seed = problem.dropout.has_seed_tensor
                            ? reinterpret_cast<uintptr_t>(args.dropout_seed_tensor.data)
                            : problem.dropout.seed;
  params.dropout.offset = problem.dropout.offset;
  params.dropout.threshold = problem.dropout.threshold;
  params.dropout.gain = static_cast<float>(problem.dropout.gain);
  params.num_heads = static_cast<int>(problem.num_heads);
  params.num_heads_kv = static_cast<int>(problem.num_heads_kv);
  params.group_size = static_cast<int>(problem.group_size());
  params.group = divisor_param(problem.group_size());
  params.head_dim = static_cast<int>(problem.head_dim);
  params.head_dim_v = static_cast<int>(problem.head_dim_v);
  params.softmax_scale = static_cast<float>(problem.softmax_scale);
  params.softcap = static_cast<float>(problem.softcap.value_or(0));
  params.inverse_softcap = static_cast<float>(problem.softcap ? 1 / *problem.softcap : 0);
  return params;
}

device::AppendParams append_params(const AttentionProblem& problem, const AttentionArgs& args,
                                   char* turned_q) {
  device::AppendParams append;
  append.k_new = rows_param(args.k_new);
  append.v_new = rows_param(args.v_new);
  append.rotary_seqlens = ints_param(args.rotary_seqlens);
  if (problem.rotary_dim == 0) return append;
  append.cos = static_cast<const char*>(args.rotary_cos.data);
  append.sin = static_cast<const char*>(args.rotary_sin.data);
  append.cos_row_stride = stride_bytes(args.rotary_cos, 0);
  append.cos_stride = stride_bytes(args.rotary_cos, 1);
  append.sin_row_stride = stride_bytes(args.rotary_sin, 0);
  append.sin_stride = stride_bytes(args.rotary_sin, 1);
  append.num_positions = static_cast<int>(args.rotary_cos.shape[0]);
  append.num_pairs = static_cast<int>(problem.rotary_dim / 2);
  append.is_interleaved = problem.rotary_interleaved ? 1 : 0;
  append.is_local = problem.is_local() ? 1 : 0;
  const TensorView& q = args.q;
  append.turned_q = rows_param(
      TensorView(turned_q, q.dtype, std::span(q.shape.data(), static_cast<size_t>(q.ndim))));
  return append;
}

ExpressionArguments::ExpressionArguments(const AttentionProblem& problem,
                                         const AttentionArgs& args) {
  const ExpressionInputs inputs = expression_inputs(problem);
  // The layout of ExpressionParams: aux tensors, then floats, each at least one.
  const size_t num_aux = std::max<size_t>(inputs.aux.size(), 1);
  const size_t num_scalars = std::max<size_t>(inputs.params.size(), 1);
  const size_t aux_bytes = num_aux * sizeof(device::AuxParam);
  bytes_.assign((aux_bytes + num_scalars * sizeof(float) + 7) / 8, 0);
  variant::Expr names;  // only their order matters here
  names.aux = inputs.aux;
  names.params = inputs.params;
  const std::vector<TensorView> tensors = bound_aux(names, args);
  char* at = reinterpret_cast<char*>(bytes_.data());
  for (size_t n = 0; n < tensors.size(); ++n) {
    const device::AuxParam aux = aux_param(tensors[n]);
    std::memcpy(at + n * sizeof aux, &aux, sizeof aux);
  }
  const std::vector<double> scalars = bound_params(names, args);
  for (size_t n = 0; n < scalars.size(); ++n) {
    const auto value = static_cast<float>(scalars[n]);
    std::memcpy(at + aux_bytes + n * sizeof value, &value, sizeof value);
  }
}

char* device_workspace(std::string_view op, const Context& context, int64_t bytes) {
  if (bytes == 0) return nullptr;
  constexpr uintptr_t kAlignment = 256;
  const auto address = reinterpret_cast<uintptr_t>(context.workspace);
  const uintptr_t skipped = (kAlignment - address % kAlignment) % kAlignment;
  if (context.workspace == nullptr ||
      context.workspace_bytes < static_cast<size_t>(bytes) + skipped) {
    throw Error(ErrorCode::kOutOfMemory, std::string(op) + ": the workspace has " +
                                             std::to_string(context.workspace_bytes) +
                                             " bytes of device memory, " + std::to_string(bytes) +
                                             " are needed (aligned to 256)");
  }
  return static_cast<char*>(context.workspace) + skipped;
}

}  // namespace flashtile::cuda
