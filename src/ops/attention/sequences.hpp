// SPDX-License-Identifier: Apache-2.0
//
// Where the rows of a sequence lie: the one place that knows dense, packed, padded, paged and
// indirect layouts. The reference and the CPU kernels read rows through it alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/kept_list.hpp"
#include "ops/attention/args.hpp"
#include "ops/attention/problem.hpp"

namespace flashtile {

/// One sequence of the batch. Keys are counted from 0 = the first one that is there.
struct Sequence {
  int64_t batch_idx = 0;
  int64_t q_begin = 0;  ///< packed: its first row of q; else 0
  int64_t k_begin = 0;  ///< packed: its first row of k; else 0
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  int64_t leftpad = 0;  ///< stored index of key 0
  int64_t query_offset = 0;
};

/// All sequences, in order. Reads the length tensors (host memory, already checked).
std::vector<Sequence> attention_sequences(const AttentionProblem& problem,
                                          const AttentionArgs& args);
void find_sequences(const AttentionProblem& problem, const AttentionArgs& args,
                    KeptList<Sequence>* sequences);

/// Rows at a constant distance; strides in bytes. `data` may be null: no such tensor.
struct Rows {
  char* data = nullptr;
  int64_t row_stride = 0;
  int64_t element_stride = 0;

  char* row(int64_t i) const { return data + i * row_stride; }
  template <class T>
  T& element(int64_t i) const {
    return *reinterpret_cast<T*>(data + i * row_stride);
  }
};

/// Rows of keys or values, through a block table where there is one.
struct KeyRows {
  char* data = nullptr;
  int64_t row_stride = 0;
  int64_t element_stride = 0;
  int64_t leftpad = 0;
  const char* block_table = nullptr;
  int64_t table_stride = 0;
  int64_t page_stride = 0;
  int64_t page_size = 0;

  char* row(int64_t key) const {
    const int64_t stored = key + leftpad;
    if (block_table == nullptr) return data + stored * row_stride;
    return data + page_of(key) * page_stride + stored % page_size * row_stride;
  }
  /// Addresses of keys [begin, end), page by page.
  template <class Address>
  void addresses(int64_t begin, int64_t end, Address* out) const {
    for (int64_t key = begin; key < end;) {
      char* first = row(key);
      int64_t run_end = end;
      if (block_table != nullptr) {
        run_end = std::min(end, key + page_size - (key + leftpad) % page_size);
      }
      for (; key < run_end; ++key, first += row_stride) *out++ = first;
    }
  }
  /// The page of a key, where there is a block table.
  int64_t page_of(int64_t key) const {
    const int64_t number = (key + leftpad) / page_size;
    return *reinterpret_cast<const int32_t*>(block_table + number * table_stride);
  }
};

/// What the stored keys or values of a head are multiplied by: one number, or one for each page.
struct KeyScales {
  const char* data = nullptr;  ///< null: 1
  int64_t page_stride = 0;
  KeyRows pages;

  float of(int64_t key) const {
    if (data == nullptr) return 1;
    const int64_t offset = page_stride == 0 ? 0 : pages.page_of(key) * page_stride;
    return *reinterpret_cast<const float*>(data + offset);
  }
};

/// Rows i of (batch, seqlen, heads, dim) or (total, heads, dim): q, out, dout, dq.
Rows query_rows(const TensorView& tensor, const Sequence& sequence, int64_t head);

/// Rows j of k, v, dk or dv.
KeyRows key_rows(const TensorView& tensor, const AttentionArgs& args, const Sequence& sequence,
                 int64_t head_kv);

/// Their scales: k_scale for k, v_scale for v.
KeyScales key_scales(const TensorView& scales, const TensorView& tensor, const AttentionArgs& args,
                     const Sequence& sequence, int64_t head_kv);

/// One number for each query of (batch, heads, seqlen_q) or (heads, total_q): lse, dlse.
Rows lse_rows(const TensorView& tensor, const Sequence& sequence, int64_t head);

/// Rows i of bias or dbias (stride 0 where it is broadcast); element j is that of key j.
Rows bias_rows(const TensorView& tensor, const Sequence& sequence, int64_t head);

/// Rows i of the optional (batch, heads, seqlen_q, seqlen_k) results.
Rows weight_rows(const TensorView& tensor, const Sequence& sequence, int64_t head);

/// Element of an i32 or f32 tensor.
template <class T>
T element(const TensorView& tensor, std::initializer_list<int64_t> index) {
  return *reinterpret_cast<const T*>(tensor.at(index));
}

/// ALiBi slope of a head.
inline float alibi_slope(const TensorView& slopes, int64_t batch_idx, int64_t head) {
  return slopes.ndim == 2 ? element<float>(slopes, {batch_idx, head})
                          : element<float>(slopes, {head});
}

/// The block lists of one (batch, head): which key blocks a query block sees. Memory is that of the
/// lists themselves.
class BlockList {
 public:
  BlockList() = default;  ///< sees everything
  BlockList(const AttentionArgs& args, int64_t batch_idx, int64_t head) {
    assign(args, batch_idx, head);
  }

  /// Becomes that of a head, in the memory that there is.
  void assign(const AttentionArgs& args, int64_t batch_idx, int64_t head);

  bool is_given() const { return block_rows_ > 0; }
  int64_t block_rows() const { return block_rows_; }
  int64_t block_cols() const { return block_cols_; }
  /// Listed key blocks of row block m, ascending: cols()[first()[m]] .. cols()[first()[m + 1] - 1].
  const int64_t* first() const { return first_.data(); }
  const int32_t* cols() const { return cols_.data(); }

  /// True when query q_idx sees the block of key k_idx.
  bool sees(int64_t q_idx, int64_t k_idx) const {
    const int64_t col = k_idx / block_cols_or_one();
    return !is_given() || num_listed(q_idx / block_rows_, col, col + 1) > 0;
  }
  /// How many of the key blocks [begin, end) row block `row` lists.
  int64_t num_listed(int64_t row, int64_t begin, int64_t end) const;

 private:
  int64_t block_cols_or_one() const { return is_given() ? block_cols_ : 1; }

  int64_t block_rows_ = 0;
  int64_t block_cols_ = 0;
  std::vector<int64_t> first_;
  std::vector<int32_t> cols_;
};

}  // namespace flashtile
