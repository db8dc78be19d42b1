// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/append.hpp"

#include <algorithm>
#include <cstring>

#include "core/element.hpp"
#include "core/executor.hpp"
#include "core/fail.hpp"
#include "core/kept_list.hpp"
#include "ops/attention/sequences.hpp"

namespace flashtile {
namespace {

/// Where the new keys of a sequence are, and where they go.
struct NewKeys {
  int64_t begin = 0;  ///< packed: the first row of k_new; else 0
  int64_t count = 0;
  int64_t slot = 0;            ///< of the first one
  int64_t first_position = 0;  ///< row of the rotary tables
};

NewKeys new_keys(const AttentionArgs& args, int64_t b) {
  NewKeys keys;
  keys.slot = element<int32_t>(args.seqused_k, {b});
  keys.first_position =
      args.rotary_seqlens ? element<int32_t>(args.rotary_seqlens, {b}) : keys.slot;
  if (args.cu_seqlens_new) {
    keys.begin = element<int32_t>(args.cu_seqlens_new, {b});
    keys.count = element<int32_t>(args.cu_seqlens_new, {b + 1}) - keys.begin;
  } else {
    keys.count = args.k_new.shape[1];
  }
  return keys;
}

int64_t num_queries(const AttentionProblem& problem, const AttentionArgs& args, int64_t b) {
  if (!args.cu_seqlens_q) return problem.max_seqlen_q;
  return element<int32_t>(args.cu_seqlens_q, {b + 1}) - element<int32_t>(args.cu_seqlens_q, {b});
}

/// A copied row, the first rotary_dim elements turned.
class Rotary {
 public:
  Rotary(const AttentionProblem& problem, const AttentionArgs& args)
      : args_(args),
        dtype_(problem.dtype),
        head_dim_(problem.head_dim),
        num_pairs_(problem.rotary_dim / 2),
        is_interleaved_(problem.rotary_interleaved) {}

  bool is_on() const { return num_pairs_ > 0; }

  void copy_row(const char* from, int64_t from_stride, char* to, int64_t to_stride,
                int64_t position) const {
    for (int64_t n = 0; n < num_pairs_; ++n) {
      const int64_t first = is_interleaved_ ? 2 * n : n;
      const int64_t second = is_interleaved_ ? 2 * n + 1 : n + num_pairs_;
      const double cos = load_float(args_.rotary_cos.at({position, n}), args_.rotary_cos.dtype);
      const double sin = load_float(args_.rotary_sin.at({position, n}), args_.rotary_sin.dtype);
      const double a = load_float(from + first * from_stride, dtype_);
      const double b = load_float(from + second * from_stride, dtype_);
      store_float(to + first * to_stride, dtype_, a * cos - b * sin);
      store_float(to + second * to_stride, dtype_, b * cos + a * sin);
    }
    const auto bytes = static_cast<size_t>(dtype_bytes(dtype_));
    for (int64_t d = 2 * num_pairs_; d < head_dim_; ++d) {
      std::memcpy(to + d * to_stride, from + d * from_stride, bytes);
    }
  }

 private:
  const AttentionArgs& args_;
  DType dtype_;
  int64_t head_dim_;
  int64_t num_pairs_;
  bool is_interleaved_;
};

void copy_elements(const char* from, int64_t from_stride, char* to, int64_t to_stride, int64_t dim,
                   int64_t bytes) {
  if (from_stride == bytes && to_stride == bytes) {
    std::memcpy(to, from, static_cast<size_t>(dim * bytes));
    return;
  }
  for (int64_t d = 0; d < dim; ++d) {
    std::memcpy(to + d * to_stride, from + d * from_stride, static_cast<size_t>(bytes));
  }
}

/// A row of new keys or values in the cache: as it is, or divided by its scale and rounded.
struct CacheRow {
  char* data;
  int64_t stride;
  DType dtype;
  float scale;

  void store(const char* from, int64_t from_stride, DType from_dtype, int64_t dim) const {
    if (dtype == from_dtype) {
      copy_elements(from, from_stride, data, stride, dim, dtype_bytes(dtype));
      return;
    }
    for (int64_t d = 0; d < dim; ++d) {
      const double value = load_float(from + d * from_stride, from_dtype);
      store_float(data + d * stride, dtype, value / static_cast<double>(scale));
    }
  }
};

/// Stores the new keys and values of one sequence and kv head.
void store_new_keys(const AttentionProblem& problem, const AttentionArgs& args,
                    const Rotary& rotary, int64_t b, int64_t head_kv) {
  const NewKeys keys = new_keys(args, b);
  Sequence sequence;  // slots count from 0, whatever the padding
  sequence.batch_idx = b;
  sequence.q_begin = keys.begin;
  const Rows k_from = query_rows(args.k_new, sequence, head_kv);
  const Rows v_from = query_rows(args.v_new, sequence, head_kv);
  const KeyRows k_to = key_rows(args.k, args, sequence, head_kv);
  const KeyRows v_to = key_rows(args.v, args, sequence, head_kv);
  const KeyScales k_scales = key_scales(args.k_scale, args.k, args, sequence, head_kv);
  const KeyScales v_scales = key_scales(args.v_scale, args.v, args, sequence, head_kv);
  const int64_t bytes = dtype_bytes(problem.dtype);
  KeptList<char> turned;
  turned.resize(static_cast<size_t>(rotary.is_on() ? problem.head_dim * bytes : 0));
  for (int64_t n = 0; n < keys.count; ++n) {
    const int64_t slot = keys.slot + n;
    const CacheRow k{k_to.row(slot), k_to.element_stride, args.k.dtype, k_scales.of(slot)};
    const CacheRow v{v_to.row(slot), v_to.element_stride, args.v.dtype, v_scales.of(slot)};
    if (rotary.is_on()) {
      rotary.copy_row(k_from.row(n), k_from.element_stride, turned.data(), bytes,
                      keys.first_position + n);
      k.store(turned.data(), bytes, problem.dtype, problem.head_dim);
    } else {
      k.store(k_from.row(n), k_from.element_stride, problem.dtype, problem.head_dim);
    }
    v.store(v_from.row(n), v_from.element_stride, problem.dtype, problem.head_dim_v);
  }
}

}  // namespace

void check_append(std::string_view op, const AttentionArgs& args, bool is_backward) {
  if (is_backward && args.k_new) refuse(op, "keys to append (k_new) have no backward");
  if (is_backward && args.rotary_cos) refuse(op, "rotary embedding (rotary_cos) has no backward");
  if (bool(args.k_new) != bool(args.v_new)) fail(op, "k_new and v_new must be given together");
  if (args.cu_seqlens_new && !args.k_new) fail(op, "cu_seqlens_new is given without k_new");
  if (args.k_new && !args.seqused_k) {
    fail(op, "k_new needs seqused_k, the stored keys that are in use before the call");
  }
  if (args.k_new && args.cu_seqlens_k) {
    fail(op, "k_new needs k with room for new keys, not packed by cu_seqlens_k");
  }
  if (bool(args.rotary_cos) != bool(args.rotary_sin)) {
    fail(op, "rotary_cos and rotary_sin must be given together");
  }
  if (args.rotary_cos && !args.k_new) fail(op, "rotary_cos needs k_new, the keys that turn");
  if (args.rotary_cos && args.rotary_cos.shape[1] > args.q.shape[size_t(args.q.ndim) - 1] / 2) {
    fail(op, "rotary_cos has ", args.rotary_cos.shape[1], " columns, expected at most half of the ",
         args.q.shape[size_t(args.q.ndim) - 1], " of head_dim");
  }
  if (!args.rotary_cos && (args.rotary_seqlens || args.rotary_interleaved)) {
    fail(op, args.rotary_seqlens ? "rotary_seqlens" : "rotary_interleaved",
         " is given without rotary_cos");
  }
}

int64_t check_new_keys(std::string_view op, const AttentionProblem& problem,
                       const AttentionArgs& args, int64_t b) {
  const NewKeys keys = new_keys(args, b);
  if (keys.slot + keys.count > problem.max_seqlen_k) {
    fail(op, "seqused_k[", b, "] is ", keys.slot, " and there are ", keys.count,
         " new keys, expected at most ", problem.max_seqlen_k,
         " together, the slots of a sequence");
  }
  if (problem.rotary_dim == 0) return keys.count;
  const int64_t queries = num_queries(problem, args, b);
  const int64_t query_steps = problem.is_local() ? queries : std::min<int64_t>(queries, 1);
  const int64_t end = keys.first_position + std::max(keys.count, query_steps);
  if (keys.first_position < 0 || end > args.rotary_cos.shape[0]) {
    fail(op, "sequence ", b, " turns by rows ", keys.first_position, " to ", end - 1,
         " of rotary_cos, which has ", args.rotary_cos.shape[0]);
  }
  return keys.count;
}

void check_new_slots(std::string_view op, const AttentionProblem& problem,
                     const AttentionArgs& args) {
  // One sequence cannot meet itself but by a page that its table names twice.
  KeptList<std::pair<const char*, int64_t>> slots;
  for (int64_t b = 0; b < problem.batch_size; ++b) {
    const NewKeys keys = new_keys(args, b);
    Sequence sequence;
    sequence.batch_idx = b;
    const KeyRows rows = key_rows(args.k, args, sequence, 0);
    for (int64_t n = 0; n < keys.count; ++n) slots.emplace_back(rows.row(keys.slot + n), b);
  }
  std::sort(slots.begin(), slots.end());
  for (size_t i = 1; i < slots.size(); ++i) {
    if (slots[i].first != slots[i - 1].first) continue;
    fail(op, "sequences ", slots[i - 1].second, " and ", slots[i].second,
         " append new keys to the same slot of k, expected slots of their own");
  }
}

void find_appended_lengths(const AttentionProblem& problem, const AttentionArgs& args,
                           KeptList<int32_t>* lengths) {
  lengths->clear();
  for (int64_t b = 0; b < problem.batch_size; ++b) {
    const NewKeys keys = new_keys(args, b);
    lengths->push_back(static_cast<int32_t>(keys.slot + keys.count));
  }
}

AppendedCall::AppendedCall(const AttentionProblem& problem, const AttentionArgs& args,
                           const Context& context) {
  *args_ = args;
  const Rotary rotary(problem, args);
  if (rotary.is_on()) {
    const int64_t bytes = args.q.numel() * dtype_bytes(args.q.dtype);
    queries_.resize(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
    args_->q = TensorView(queries_.data(), args.q.dtype,
                          std::span(args.q.shape.data(), static_cast<size_t>(args.q.ndim)));
  }
  const int64_t num_heads_kv = problem.num_heads_kv;
  constexpr double kElement = 32;  // turning and storing one, in multiply-adds
  const Context limited =
      with_workers_for(kElement * static_cast<double>(args.k_new.numel() + args.v_new.numel() +
                                                      (rotary.is_on() ? args.q.numel() : 0)),
                       context);
  parallel_for(limited, problem.batch_size * num_heads_kv, [&](int64_t task, int) {
    store_new_keys(problem, args, rotary, task / num_heads_kv, task % num_heads_kv);
  });
  if (rotary.is_on()) {
    parallel_for(limited, problem.batch_size * problem.num_heads, [&](int64_t task, int) {
      const int64_t b = task / problem.num_heads;
      Sequence sequence;
      sequence.batch_idx = b;
      if (args.cu_seqlens_q) sequence.q_begin = element<int32_t>(args.cu_seqlens_q, {b});
      const Rows from = query_rows(args.q, sequence, task % problem.num_heads);
      const Rows to = query_rows(args_->q, sequence, task % problem.num_heads);
      const int64_t position = new_keys(args, b).first_position;
      for (int64_t i = 0; i < num_queries(problem, args, b); ++i) {
        rotary.copy_row(from.row(i), from.element_stride, to.row(i), to.element_stride,
                        problem.is_local() ? position + i : position);
      }
    });
  }
  find_appended_lengths(problem, args, &lengths_);
  args_->seqused_k = TensorView(lengths_.data(), DType::kI32, {problem.batch_size});
  for (TensorView* used : {&args_->k_new, &args_->v_new, &args_->cu_seqlens_new, &args_->rotary_cos,
                           &args_->rotary_sin, &args_->rotary_seqlens}) {
    *used = {};
  }
  args_->rotary_interleaved = false;
}

}  // namespace flashtile
