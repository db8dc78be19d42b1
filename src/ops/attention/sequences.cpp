// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sequences.hpp"

#include <algorithm>

namespace flashtile {

std::vector<Sequence> attention_sequences(const AttentionProblem& problem,
                                          const AttentionArgs& args) {
  KeptList<Sequence> sequences;
  find_sequences(problem, args, &sequences);
  return {sequences.begin(), sequences.end()};
}

void find_sequences(const AttentionProblem& problem, const AttentionArgs& args,
                    KeptList<Sequence>* sequences) {
  sequences->assign(static_cast<size_t>(problem.batch_size), {});
  for (int64_t b = 0; b < problem.batch_size; ++b) {
    Sequence& s = (*sequences)[static_cast<size_t>(b)];
    s.batch_idx = b;
    s.seqlen_q = problem.max_seqlen_q;
    s.seqlen_k = problem.max_seqlen_k;
    if (args.cu_seqlens_q) {
      s.q_begin = element<int32_t>(args.cu_seqlens_q, {b});
      s.seqlen_q = element<int32_t>(args.cu_seqlens_q, {b + 1}) - s.q_begin;
    }
    if (args.cu_seqlens_k) {
      s.k_begin = element<int32_t>(args.cu_seqlens_k, {b});
      s.seqlen_k = element<int32_t>(args.cu_seqlens_k, {b + 1}) - s.k_begin;
    }
    if (args.seqused_k) s.seqlen_k = element<int32_t>(args.seqused_k, {b});
    if (args.leftpad_k) s.leftpad = element<int32_t>(args.leftpad_k, {b});
    s.seqlen_k -= s.leftpad;
    s.query_offset = problem.query_offset.value_or(s.seqlen_k - s.seqlen_q);
  }
}

namespace {

int64_t stride_bytes(const TensorView& tensor, int dim) {
  return tensor.strides[static_cast<size_t>(dim)] * dtype_bytes(tensor.dtype);
}

/// Stride in bytes, 0 where the dimension is 1 and so stands for any index.
int64_t broadcast_stride(const TensorView& tensor, int dim) {
  return tensor.shape[static_cast<size_t>(dim)] == 1 ? 0 : stride_bytes(tensor, dim);
}

}  // namespace

Rows query_rows(const TensorView& tensor, const Sequence& sequence, int64_t head) {
  if (!tensor) return {};
  const int first = tensor.ndim - 3;  // dimension of the rows
  char* data = static_cast<char*>(tensor.data) + head * stride_bytes(tensor, first + 1) +
               sequence.q_begin * stride_bytes(tensor, first);
  if (first == 1) data += sequence.batch_idx * stride_bytes(tensor, 0);
  return {data, stride_bytes(tensor, first), stride_bytes(tensor, first + 2)};
}

KeyRows key_rows(const TensorView& tensor, const AttentionArgs& args, const Sequence& sequence,
                 int64_t head_kv) {
  if (!tensor) return {};
  const int first = tensor.ndim - 3;
  KeyRows rows;
  rows.data = static_cast<char*>(tensor.data) + head_kv * stride_bytes(tensor, first + 1);
  rows.row_stride = stride_bytes(tensor, first);
  rows.element_stride = stride_bytes(tensor, first + 2);
  rows.leftpad = sequence.leftpad;
  if (args.block_table) {
    rows.block_table = args.block_table.at({sequence.batch_idx, 0});
    rows.table_stride = stride_bytes(args.block_table, 1);
    rows.page_stride = stride_bytes(tensor, 0);
    rows.page_size = tensor.shape[1];
  } else if (first == 1) {
    const int64_t line = args.cache_batch_idx
                             ? element<int32_t>(args.cache_batch_idx, {sequence.batch_idx})
                             : sequence.batch_idx;
    rows.data += line * stride_bytes(tensor, 0);
  } else {
    rows.data += sequence.k_begin * rows.row_stride;
  }
  return rows;
}

KeyScales key_scales(const TensorView& scales, const TensorView& tensor, const AttentionArgs& args,
                     const Sequence& sequence, int64_t head_kv) {
  if (!scales) return {};
  const char* data =
      static_cast<const char*>(scales.data) + head_kv * stride_bytes(scales, scales.ndim - 1);
  if (scales.ndim == 1) return {data, 0, {}};
  const int64_t stride = stride_bytes(scales, 0);
  if (args.block_table) {
    return {data, stride, key_rows(tensor, args, sequence, head_kv)};
  }
  const int64_t line = args.cache_batch_idx
                           ? element<int32_t>(args.cache_batch_idx, {sequence.batch_idx})
                           : sequence.batch_idx;
  return {data + line * stride, 0, {}};
}

Rows lse_rows(const TensorView& tensor, const Sequence& sequence, int64_t head) {
  if (!tensor) return {};
  char* data = static_cast<char*>(tensor.data);
  if (tensor.ndim == 3) {
    data += sequence.batch_idx * stride_bytes(tensor, 0) + head * stride_bytes(tensor, 1);
    return {data, stride_bytes(tensor, 2), 0};
  }
  data += head * stride_bytes(tensor, 0) + sequence.q_begin * stride_bytes(tensor, 1);
  return {data, stride_bytes(tensor, 1), 0};
}

Rows bias_rows(const TensorView& tensor, const Sequence& sequence, int64_t head) {
  if (!tensor) return {};
  const int64_t key_stride = stride_bytes(tensor, 3);
  char* data = static_cast<char*>(tensor.data) + sequence.batch_idx * broadcast_stride(tensor, 0) +
               head * broadcast_stride(tensor, 1) + sequence.leftpad * key_stride;
  return {data, broadcast_stride(tensor, 2), key_stride};
}

Rows weight_rows(const TensorView& tensor, const Sequence& sequence, int64_t head) {
  if (!tensor) return {};
  char* data = static_cast<char*>(tensor.data) + sequence.batch_idx * stride_bytes(tensor, 0) +
               head * stride_bytes(tensor, 1);
  return {data, stride_bytes(tensor, 2), stride_bytes(tensor, 3)};
}

void BlockList::assign(const AttentionArgs& args, int64_t batch_idx, int64_t head) {
  block_rows_ = block_cols_ = 0;
  first_.clear();
  cols_.clear();
  if (!args.block_counts) return;
  const auto clamped = [](const TensorView& t, int dim, int64_t i) {
    return std::min(i, t.shape[static_cast<size_t>(dim)] - 1);
  };
  const TensorView& counts = args.block_counts;
  const TensorView& indices = args.block_indices;
  block_rows_ = args.block_rows;
  block_cols_ = args.block_cols;
  const int64_t b = clamped(counts, 0, batch_idx);
  const int64_t h = clamped(counts, 1, head);
  const int64_t index_b = clamped(indices, 0, batch_idx);
  const int64_t index_h = clamped(indices, 1, head);
  first_.push_back(0);
  for (int64_t m = 0; m < counts.shape[2]; ++m) {
    const auto begin = static_cast<std::ptrdiff_t>(cols_.size());
    for (int64_t n = 0; n < element<int32_t>(counts, {b, h, m}); ++n) {
      cols_.push_back(element<int32_t>(indices, {index_b, index_h, m, n}));
    }
    std::sort(cols_.begin() + begin, cols_.end());
    cols_.erase(std::unique(cols_.begin() + begin, cols_.end()), cols_.end());
    first_.push_back(static_cast<int64_t>(cols_.size()));
  }
}

int64_t BlockList::num_listed(int64_t row, int64_t begin, int64_t end) const {
  const auto from = cols_.begin() + first_[static_cast<size_t>(row)];
  const auto to = cols_.begin() + first_[static_cast<size_t>(row) + 1];
  return std::lower_bound(from, to, end) - std::lower_bound(from, to, begin);
}

}  // namespace flashtile
