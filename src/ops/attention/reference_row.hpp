// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "core/element.hpp"
#include "ops/attention/sequences.hpp"
#include "ops/attention/variant.hpp"

namespace flashtile {

/// `num_rows` rows of `dim` elements, as doubles, one after the other.
template <class AnyRows>
std::vector<double> read_rows(const AnyRows& rows, int64_t num_rows, int64_t dim, DType dtype) {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(num_rows * dim));
  for (int64_t i = 0; i < num_rows; ++i) {
    const char* row = rows.row(i);
    for (int64_t d = 0; d < dim; ++d)
      values.push_back(load_float(row + d * rows.element_stride, dtype));
  }
  return values;
}

/// Rows of keys or values, dequantised.
std::vector<double> read_keys(const TensorView& tensor, const TensorView& scales,
                              const AttentionArgs& args, const Sequence& sequence, int64_t head_kv,
                              int64_t dim);

/// Everything about one query row that forward and backward share, in double.
struct ReferenceRow {
  std::vector<uint8_t> is_seen;     ///< by key
  std::vector<double> scaled;       ///< q . k softmax_scale
  std::vector<double> logit;        ///< after score options
  std::vector<double> probability;  ///< softmax, before dropout
  std::vector<double> keep;         ///< what dropout multiplies by: 0, the gain, or 1
  double max_logit = 0;             ///< over the keys that are seen, NaN aside; -inf for none
  double lse = 0;                   ///< -inf for an empty row without sink
  double sink_probability = 0;
};

/// Computes rows of one (sequence, head).
class ReferenceHead {
 public:
  ReferenceHead(const AttentionProblem& problem, const AttentionArgs& args,
                const AttentionVariant& variant, const Sequence& sequence, int64_t head);

  /// s = q.k scale -> score options -> masks -> softmax with the sink.
  void compute(int64_t q_idx, ReferenceRow* row);

  /// The variables of pair (q_idx, k_idx), for derivatives.
  variant::Variables variables_at(int64_t q_idx, int64_t k_idx, double scaled) const;

  // Rows as doubles.
  const double* query(int64_t q_idx) const { return queries_.data() + q_idx * problem_.head_dim; }
  const double* key(int64_t k_idx) const { return keys_.data() + k_idx * problem_.head_dim; }
  const double* value(int64_t k_idx) const { return values_.data() + k_idx * problem_.head_dim_v; }

 private:
  bool sees(int64_t q_idx, int64_t k_idx);
  double keep_factor(int64_t q_idx, int64_t k_idx) const;
  void check_indices(const variant::Evaluator& evaluator) const;

  const AttentionProblem& problem_;
  std::vector<double> queries_, keys_, values_;
  BlockList block_list_;
  variant::Evaluator score_, mask_;
  variant::Variables variables_;
  int64_t head_;
  double sink_;
};

}  // namespace flashtile
