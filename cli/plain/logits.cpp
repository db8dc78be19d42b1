// SPDX-License-Identifier: Apache-2.0
#include "plain/logits.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/element.hpp"
#include "variant/expr/derivative.hpp"

namespace flashtile::cli {
namespace {

constexpr double kJitterSize = 0x1p-22;

variant::Evaluator evaluator(const variant::Expr& expr, const AttentionArgs& args) {
  return {expr, bound_aux(expr, args), bound_params(expr, args)};
}

int64_t floor_multiple(int64_t value, int64_t unit) {
  const int64_t rest = value % unit;
  return value - (rest < 0 ? rest + unit : rest);
}

}  // namespace

PlainLogits::PlainLogits(const AttentionProblem& problem, const AttentionArgs& args,
                         const Sequence& sequence, int64_t head, bool is_jittered)
    : problem_(problem),
      sequence_(sequence),
      is_jittered_(is_jittered),
      variables_(attention_variables(problem, sequence, head)),
      bias_(bias_rows(args.bias, sequence, head)),
      bias_dtype_(args.bias.dtype),
      blocks_(args, sequence.batch_idx, head),
      is_seen_(static_cast<size_t>(sequence.seqlen_k)) {
  if (!problem.user_score.empty()) {
    score_ = evaluator(problem.user_score, args);
    derivative_ = evaluator(variant::derivative_score(problem.user_score), args);
    score_inputs_.resize(is_seen_.size());
  }
  if (!problem.user_mask.empty()) mask_ = evaluator(problem.user_mask, args);
  if (args.alibi_slopes) {
    alibi_slope_ = alibi_slope(args.alibi_slopes, sequence.batch_idx, head);
  }
}

double PlainLogits::jitter(int64_t q_idx, size_t k_idx, double size, uint64_t salt) const {
  // A fixed sign for each pair, from a multiplicative hash.
  uint64_t hash = (static_cast<uint64_t>(q_idx) << 32 ^ k_idx) * 0x9E3779B97F4A7C15 + salt;
  hash = (hash ^ hash >> 29) * 0xBF58476D1CE4E5B9;
  return (hash >> 63 != 0 ? kJitterSize : -kJitterSize) * size;
}

std::pair<int64_t, int64_t> PlainLogits::seen_range(int64_t q_idx) const {
  const int64_t position = q_idx + sequence_.query_offset;
  int64_t first = 0;
  int64_t last = sequence_.seqlen_k - 1;
  if (problem_.window_left) first = std::max(first, position - *problem_.window_left);
  if (problem_.window_right) last = std::min(last, position + *problem_.window_right);
  if (problem_.attention_chunk) {
    const int64_t start = floor_multiple(position, *problem_.attention_chunk);
    first = std::max(first, start);
    last = std::min(last, start + *problem_.attention_chunk - 1);
  }
  return {first, last};
}

bool PlainLogits::sees(int64_t q_idx, int64_t k_idx) {
  if (!blocks_.sees(q_idx, k_idx)) return false;
  if (!mask_) return true;
  variables_.q_idx = q_idx;
  variables_.k_idx = k_idx;
  return mask_->truth(variables_);
}

int64_t PlainLogits::num_seen(int64_t q_idx) {
  const auto [first, last] = seen_range(q_idx);
  if (!mask_ && !blocks_.is_given()) return std::max<int64_t>(0, last - first + 1);
  int64_t count = 0;
  for (int64_t j = first; j <= last; ++j) count += sees(q_idx, j);
  return count;
}

template <class Real>
void PlainLogits::apply_score(int64_t q_idx, std::span<Real> row, std::span<Real> slopes) {
  variables_.q_idx = q_idx;
  for (size_t j = 0; j < row.size(); ++j) {
    if (!is_seen_[j]) continue;
    variables_.k_idx = static_cast<int64_t>(j);
    variables_.score = score_inputs_[j] = row[j];
    row[j] = static_cast<Real>(score_->number(variables_));
    if (!slopes.empty()) slopes[j] *= static_cast<Real>(derivative_->number(variables_));
    if (is_jittered_) row[j] += static_cast<Real>(jitter(q_idx, j, std::abs(row[j]), 1));
  }
}

template <class Real>
void PlainLogits::apply_added(int64_t q_idx, std::span<Real> row) {
  constexpr Real kHidden = -std::numeric_limits<Real>::infinity();
  if (bias_.data != nullptr) {
    const char* address = bias_.row(q_idx);
    for (size_t j = 0; j < row.size(); ++j, address += bias_.element_stride) {
      const double added = load_float(address, bias_dtype_);
      if (added == -std::numeric_limits<double>::infinity()) is_seen_[j] = 0;
      row[j] += static_cast<Real>(added);
    }
  }
  if (alibi_slope_ != 0) {
    const int64_t position = q_idx + sequence_.query_offset;
    for (size_t j = 0; j < row.size(); ++j) {
      const auto distance = static_cast<double>(std::abs(position - static_cast<int64_t>(j)));
      const Real added = static_cast<Real>(alibi_slope_) * static_cast<Real>(distance);
      row[j] -= added;
      if (is_jittered_) row[j] += static_cast<Real>(jitter(q_idx, j, std::abs(added), 2));
    }
  }
  for (size_t j = 0; j < row.size(); ++j) row[j] = is_seen_[j] ? row[j] : kHidden;
}

template <class Real>
void PlainLogits::apply(int64_t q_idx, std::span<Real> row, std::span<Real> slopes,
                        std::span<const double> sizes) {
  const Real scale = static_cast<Real>(problem_.softmax_scale);
  for (Real& s : row) s *= scale;
  std::fill(slopes.begin(), slopes.end(), scale);
  if (is_jittered_) {
    for (size_t j = 0; j < row.size(); ++j) {
      row[j] += static_cast<Real>(jitter(q_idx, j, std::abs(row[j]) + sizes[j] / 4, 0));
    }
  }
  if (problem_.softcap) {
    const Real cap = static_cast<Real>(*problem_.softcap);
    for (size_t j = 0; j < row.size(); ++j) {
      const Real tanh = std::tanh(row[j] / cap);
      row[j] = cap * tanh;
      if (!slopes.empty()) slopes[j] *= 1 - tanh * tanh;
    }
  }
  std::fill(is_seen_.begin(), is_seen_.end(), uint8_t{0});
  const auto [first, last] = seen_range(q_idx);
  for (int64_t j = first; j <= last; ++j) is_seen_[static_cast<size_t>(j)] = sees(q_idx, j);
  if (score_) apply_score(q_idx, row, slopes);
  apply_added(q_idx, row);
}

template void PlainLogits::apply<float>(int64_t, std::span<float>, std::span<float>,
                                        std::span<const double>);
template void PlainLogits::apply<double>(int64_t, std::span<double>, std::span<double>,
                                         std::span<const double>);

}  // namespace flashtile::cli
