// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ops/attention/sequences.hpp"
#include "ops/attention/variant.hpp"
#include "plain/plain.hpp"

namespace flashtile::cli {

/// From q.k to masked logits, for the rows of one (sequence, head), written out option by option.
class PlainLogits {
 public:
  PlainLogits(const AttentionProblem& problem, const AttentionArgs& args, const Sequence& sequence,
              int64_t head, bool is_jittered);

  /// In: q.k of query q_idx with each key. Out: logits, -inf where the key is not seen.
  /// `slopes` (empty, or one for each key) receives d logit / d (q.k). `sizes` (one for each key
  /// when jittered) are upper bounds of |q.k softmax_scale|.
  template <class Real>
  void apply(int64_t q_idx, std::span<Real> row, std::span<Real> slopes,
             std::span<const double> sizes);

  /// Keys that a query sees by its masks; a bias is not looked at.
  int64_t num_seen(int64_t q_idx);

  /// What the score expression of the last row read as `score`; empty when there is none.
  std::span<const double> score_inputs() const { return score_inputs_; }

 private:
  template <class Real>
  void apply_score(int64_t q_idx, std::span<Real> row, std::span<Real> slopes);
  template <class Real>
  void apply_added(int64_t q_idx, std::span<Real> row);
  /// The keys that remain after causal, windows and chunk: first to last.
  std::pair<int64_t, int64_t> seen_range(int64_t q_idx) const;
  bool sees(int64_t q_idx, int64_t k_idx);
  double jitter(int64_t q_idx, size_t k_idx, double size, uint64_t salt) const;

  const AttentionProblem& problem_;
  const Sequence& sequence_;
  bool is_jittered_;
  std::optional<variant::Evaluator> score_, derivative_, mask_;
  variant::Variables variables_;
  Rows bias_;
  DType bias_dtype_;
  BlockList blocks_;
  double alibi_slope_ = 0;
  std::vector<uint8_t> is_seen_;
  std::vector<double> score_inputs_;
};

}  // namespace flashtile::cli
