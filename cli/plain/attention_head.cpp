// SPDX-License-Identifier: Apache-2.0
#include "plain/attention_head.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/element.hpp"

namespace flashtile::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class Real, class AnyRows>
void gather_row(const AnyRows& rows, int64_t i, DType dtype, std::span<Real> target) {
  const char* address = rows.row(i);
  for (Real& value : target) {
    value = static_cast<Real>(load_float(address, dtype));
    address += rows.element_stride;
  }
}

/// Upper bounds of |q_i . k_j softmax_scale| for all keys.
template <class Real>
std::vector<double> product_sizes(std::span<const Real> query, const Matrix<Real>& keys,
                                  double scale) {
  const auto norm = [](std::span<const Real> x) {
    double sum = 0;
    for (const Real value : x) sum += static_cast<double>(value) * static_cast<double>(value);
    return std::sqrt(sum);
  };
  std::vector<double> sizes;
  for (int64_t j = 0; j < keys.num_rows(); ++j) {
    sizes.push_back(norm(query) * norm(keys.row(j)) * std::abs(scale));
  }
  return sizes;
}

/// A fixed sign for each element, as if by chance: signs that are spread too evenly cancel more in
/// sums than rounding does.
double noise_sign(size_t i, size_t j) {
  uint64_t x = i * 0x9E3779B97F4A7C15 + j * 0xD1B54A32D192ED03 + 1;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return (x ^ x >> 31) >> 63 != 0 ? 1 : -1;
}

}  // namespace

template <class Real>
PlainKeys<Real>::PlainKeys(const AttentionProblem& problem, const AttentionArgs& args,
                           const Sequence& sequence, int64_t head_kv)
    : k(sequence.seqlen_k, problem.head_dim), v(sequence.seqlen_k, problem.head_dim_v) {
  const KeyRows k_rows = key_rows(args.k, args, sequence, head_kv);
  const KeyRows v_rows = key_rows(args.v, args, sequence, head_kv);
  for (int64_t j = 0; j < sequence.seqlen_k; ++j) {
    gather_row(k_rows, j, problem.k.dtype, k.row(j));
    gather_row(v_rows, j, problem.v.dtype, v.row(j));
  }
  if (problem.is_quantised) {
    // To the dtype of q, as who has no kernel for it would do.
    const KeyScales k_scales = key_scales(args.k_scale, args.k, args, sequence, head_kv);
    const KeyScales v_scales = key_scales(args.v_scale, args.v, args, sequence, head_kv);
    for (int64_t j = 0; j < sequence.seqlen_k; ++j) {
      for (Real& value : k.row(j)) value *= static_cast<Real>(k_scales.of(j));
      for (Real& value : v.row(j)) value *= static_cast<Real>(v_scales.of(j));
      round_to(problem.dtype, k.row(j));
      round_to(problem.dtype, v.row(j));
    }
  }
  k_transposed = transposed(k);
}

template <class Real>
Matrix<Real> gather_rows(const Rows& rows, std::span<const int64_t> indices, int64_t dim,
                         DType dtype) {
  Matrix<Real> result(static_cast<int64_t>(indices.size()), dim);
  for (size_t n = 0; n < indices.size(); ++n) {
    gather_row(rows, indices[n], dtype, result.row(static_cast<int64_t>(n)));
  }
  return result;
}

template <class Real>
PlainHead<Real>::PlainHead(const AttentionProblem& problem, const AttentionArgs& args,
                           const Sequence& sequence, int64_t head, const PlainConfig& config,
                           const PlainKeys<Real>& keys)
    : problem_(problem),
      keys_(keys),
      config_(config),
      logits_(problem, args, sequence, head, config.mode == PlainMode::kJitter),
      sink_(args.sink ? element<float>(args.sink, {head}) : -kInfinity),
      max_logit_(-kInfinity) {
  batch_head_ = static_cast<size_t>(sequence.batch_idx * problem.num_heads + head);
  dropout_ = {problem.dropout.seed, problem.dropout.offset, static_cast<uint32_t>(batch_head_),
              problem.dropout.threshold};
  for (int64_t i = 0; i < sequence.seqlen_q; ++i) {
    if (is_plain_row(config, i, sequence.seqlen_q)) q_indices_.push_back(i);
  }
  queries_ = gather_rows<Real>(query_rows(args.q, sequence, head), q_indices_, problem.head_dim,
                               problem.dtype);
  lse_.resize(q_indices_.size());
  sink_probabilities_.resize(q_indices_.size());
  score_inputs_.resize(q_indices_.size());
}

template <class Real>
void PlainHead<Real>::softmax_row(size_t row_idx) {
  const std::span<Real> row = probabilities_.row(static_cast<int64_t>(row_idx));
  double top = -kInfinity;
  for (const Real z : row) top = std::max(top, static_cast<double>(z));
  max_logit_ = std::max(max_logit_, top);
  top = std::max(top, sink_);
  if (top == -kInfinity) {  // nothing is seen: a row of zeros
    std::fill(row.begin(), row.end(), Real{0});
    lse_[row_idx] = -kInfinity;
    return;
  }
  const Real shift = static_cast<Real>(top);
  const Real sink_part = static_cast<Real>(std::exp(sink_ - top));
  Real sum = 0;
  for (Real& z : row) {
    z = std::exp(z - shift);
    sum += z;
  }
  sum += sink_part;
  for (Real& z : row) z /= sum;
  sink_probabilities_[row_idx] = sink_part / sum;
  lse_[row_idx] = shift + std::log(sum);
}

template <class Real>
std::vector<Real> PlainHead<Real>::keep_factors(int64_t q_idx) const {
  const auto num_keys = static_cast<size_t>(keys_.k.num_rows());
  std::vector<Real> factors(num_keys, Real{1});
  if (!problem_.dropout.is_on) return factors;
  std::vector<uint8_t> keep(num_keys);
  dropout_.keep(q_idx, keep);
  const Real gain = static_cast<Real>(problem_.dropout.gain);
  for (size_t j = 0; j < num_keys; ++j) factors[j] = keep[j] ? gain : Real{0};
  return factors;
}

template <class Real>
const Matrix<Real>& PlainHead<Real>::weights() {
  const bool is_rounded = problem_.dtype == DType::kF16 || problem_.dtype == DType::kBF16;
  if (!is_rounded && !problem_.dropout.is_on) return probabilities_;
  if (weights_.num_rows() > 0) return weights_;
  weights_ = probabilities_;
  if (problem_.dropout.is_on) {
    for (size_t n = 0; n < q_indices_.size(); ++n) {
      const std::vector<Real> factors = keep_factors(q_indices_[n]);
      const std::span<Real> row = weights_.row(static_cast<int64_t>(n));
      for (size_t j = 0; j < row.size(); ++j) row[j] *= factors[j];
    }
  }
  round_to(problem_.dtype, weights_.all());
  return weights_;
}

template <class Real>
void PlainHead<Real>::forward() {
  const int64_t num_keys = keys_.k.num_rows();
  probabilities_ = Matrix<Real>(queries_.num_rows(), num_keys);
  multiply({queries_}, keys_.k_transposed, /*accumulate=*/false, probabilities_);
  if (problem_.is_backward) slopes_ = Matrix<Real>(queries_.num_rows(), num_keys);
  for (size_t n = 0; n < q_indices_.size(); ++n) {
    const auto i = static_cast<int64_t>(n);
    std::vector<double> sizes;
    if (config_.mode == PlainMode::kJitter) {
      sizes =
          product_sizes(std::span<const Real>(queries_.row(i)), keys_.k, problem_.softmax_scale);
    }
    std::span<Real> slopes;
    if (problem_.is_backward) slopes = slopes_.row(i);
    logits_.apply(q_indices_[n], probabilities_.row(i), slopes, sizes);
    if (problem_.wants_aux_gradient) {
      score_inputs_[n].assign(logits_.score_inputs().begin(), logits_.score_inputs().end());
    }
    softmax_row(n);
  }
  if (problem_.is_backward && config_.mode != PlainMode::kNoise) return;
  out_ = Matrix<Real>(queries_.num_rows(), keys_.v.num_cols());
  multiply({weights()}, keys_.v, /*accumulate=*/false, out_);
}

template <class Real>
void PlainHead<Real>::softmax_gradient_row(size_t row_idx, const Matrix<Real>& dout, double dlse) {
  const auto i = static_cast<int64_t>(row_idx);
  const std::span<Real> row = dlogits_.row(i);  // dout . v, then the gradient of the logits
  const std::span<const Real> p = std::as_const(probabilities_).row(i);
  if (problem_.dropout.is_on) {
    const std::vector<Real> factors = keep_factors(q_indices_[row_idx]);
    for (size_t j = 0; j < row.size(); ++j) row[j] *= factors[j];
  }
  if (config_.mode == PlainMode::kNoise) {
    double squares = 0;
    const std::span<const Real> out = std::as_const(out_).row(i);
    for (size_t d = 0; d < out.size(); ++d) {
      const auto term = static_cast<double>(out[d] * dout.row(i)[d]);
      squares += term * term;
    }
    const double delta = std::sqrt(squares) + std::abs(dlse);
    dsink_ += sink_probabilities_[row_idx] * delta;
    const size_t row_key = config_.noise_draw << 56 | batch_head_ << 32 | row_idx;
    const double row_sign = noise_sign(row_key, 0);  // delta is rounded once for the whole row
    for (size_t j = 0; j < row.size(); ++j) {
      const double size =
          noise_sign(row_key, j + 1) * std::abs(static_cast<double>(row[j])) + row_sign * delta;
      row[j] = p[j] * static_cast<Real>(size);
    }
    return;
  }
  Real delta = 0;
  for (size_t j = 0; j < row.size(); ++j) delta += p[j] * row[j];
  delta -= static_cast<Real>(dlse);
  dsink_ -= sink_probabilities_[row_idx] * static_cast<double>(delta);
  for (size_t j = 0; j < row.size(); ++j) row[j] = p[j] * (row[j] - delta);
}

template <class Real>
void PlainHead<Real>::backward(const Matrix<Real>& dout, std::span<const double> dlse) {
  dlogits_ = Matrix<Real>(queries_.num_rows(), keys_.k.num_rows());
  multiply({dout}, transposed(keys_.v), /*accumulate=*/false, dlogits_);
  for (size_t n = 0; n < q_indices_.size(); ++n) softmax_gradient_row(n, dout, dlse[n]);
  Matrix<Real> products = dlogits_;
  for (size_t n = 0; n < products.all().size(); ++n) products.all()[n] *= slopes_.all()[n];
  round_to(problem_.dtype, products.all());
  slopes_ = std::move(products);  // from here on: gradients of q . k
  dq_ = Matrix<Real>(queries_.num_rows(), queries_.num_cols());
  multiply({slopes_}, keys_.k, /*accumulate=*/false, dq_);
}

template <class Real>
void PlainHead<Real>::add_key_gradients(const Matrix<Real>& dout, Matrix<Real>& dk,
                                        Matrix<Real>& dv) {
  multiply({slopes_, /*is_transposed=*/true}, queries_, /*accumulate=*/true, dk);
  multiply({weights(), /*is_transposed=*/true}, dout, /*accumulate=*/true, dv);
}

template struct PlainKeys<float>;
template struct PlainKeys<double>;
template class PlainHead<float>;
template class PlainHead<double>;
template Matrix<float> gather_rows(const Rows&, std::span<const int64_t>, int64_t, DType);
template Matrix<double> gather_rows(const Rows&, std::span<const int64_t>, int64_t, DType);

}  // namespace flashtile::cli
