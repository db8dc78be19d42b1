// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "plain/dropout.hpp"
#include "plain/logits.hpp"
#include "plain/matrix.hpp"

namespace flashtile::cli {

/// Keys and values of one (sequence, head_kv) as matrices, shared by the heads of its group.
template <class Real>
struct PlainKeys {
  PlainKeys(const AttentionProblem& problem, const AttentionArgs& args, const Sequence& sequence,
            int64_t head_kv);

  Matrix<Real> k, k_transposed, v;
};

/// Rows of q, out, dout: those with the given indices.
template <class Real>
Matrix<Real> gather_rows(const Rows& rows, std::span<const int64_t> indices, int64_t dim,
                         DType dtype);

/// Attention of one (sequence, head), its whole score matrix in memory.
template <class Real>
class PlainHead {
 public:
  PlainHead(const AttentionProblem& problem, const AttentionArgs& args, const Sequence& sequence,
            int64_t head, const PlainConfig& config, const PlainKeys<Real>& keys);

  /// Logits, softmax, dropout; out and lse of the config's rows.
  void forward();
  /// Gradients of the inputs, from dout and dlse; after forward().
  void backward(const Matrix<Real>& dout, std::span<const double> dlse);

  std::span<const int64_t> q_indices() const { return q_indices_; }
  const Matrix<Real>& out() const { return out_; }
  std::span<const double> lse() const { return lse_; }
  double max_logit() const { return max_logit_; }
  const Matrix<Real>& probabilities() const { return probabilities_; }
  /// What dropout multiplies the weights of a row by.
  std::vector<Real> keep_factors(int64_t q_idx) const;

  const Matrix<Real>& dq() const { return dq_; }
  /// Gradient of the logits, before the score's derivative is multiplied in.
  const Matrix<Real>& dlogits() const { return dlogits_; }
  double dsink() const { return dsink_; }
  /// Adds this head's part to the gradients of keys and values.
  void add_key_gradients(const Matrix<Real>& dout, Matrix<Real>& dk, Matrix<Real>& dv);
  /// What the score expression read in a row; see PlainLogits.
  std::span<const double> score_inputs(size_t row_idx) const { return score_inputs_[row_idx]; }

 private:
  void softmax_row(size_t row_idx);
  void softmax_gradient_row(size_t row_idx, const Matrix<Real>& dout, double dlse);
  /// What v is multiplied by: probabilities after dropout, as operands of a product.
  const Matrix<Real>& weights();

  const AttentionProblem& problem_;
  const PlainKeys<Real>& keys_;
  PlainConfig config_;
  PlainLogits logits_;
  DropoutRow dropout_;
  double sink_;
  size_t batch_head_ = 0;
  std::vector<int64_t> q_indices_;
  Matrix<Real> queries_, probabilities_, weights_, slopes_, out_, dlogits_, dq_;
  std::vector<double> lse_, sink_probabilities_;
  std::vector<std::vector<double>> score_inputs_;
  double max_logit_;
  double dsink_ = 0;
};

}  // namespace flashtile::cli
