// SPDX-License-Identifier: Apache-2.0
#include "plain/shared_gradients.hpp"

#include <cmath>

#include "tensors.hpp"

namespace flashtile::cli {

template <class Real>
SharedGradients<Real>::SharedGradients(const AttentionProblem& problem, const AttentionArgs& args)
    : problem_(problem),
      args_(args),
      bias_(args.dbias),
      sink_(args.dsink),
      slopes_(args.dalibi_slopes) {
  if (!problem.wants_aux_gradient) return;
  if (!problem.user_score.empty()) sites_ = variant::load_gradients(problem.user_score);
  for (const variant::AuxSignature& aux : problem.user_score.aux) {
    aux_.emplace_back(aux_gradient(aux.name, args));
  }
  // Those that the score does not read have gradient 0; write() goes from the back, so that for
  // the others the sums win.
  for (const AuxTensor& aux : args.aux) aux_.emplace_back(aux.gradient);
}

template <class Real>
double& SharedGradients<Real>::Sum::at(std::initializer_list<int64_t> index) {
  int64_t flat = 0;
  size_t d = 0;
  for (const int64_t i : index) {  // a dimension of size 1 is broadcast
    flat = flat * target.shape[d] + (target.shape[d] == 1 ? 0 : i);
    ++d;
  }
  return values[static_cast<size_t>(flat)];
}

template <class Real>
void SharedGradients<Real>::add(const Sequence& sequence, int64_t head_idx,
                                const PlainHead<Real>& head) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (sink_.target) sink_.at({head_idx}) += head.dsink();
  if (bias_.target) add_bias(sequence, head_idx, head);
  if (slopes_.target) add_slopes(sequence, head_idx, head);
  if (!aux_.empty()) add_aux(sequence, head_idx, head);
}

template <class Real>
void SharedGradients<Real>::add_bias(const Sequence& sequence, int64_t head_idx,
                                     const PlainHead<Real>& head) {
  for (size_t n = 0; n < head.q_indices().size(); ++n) {
    const std::span<const Real> row = head.dlogits().row(static_cast<int64_t>(n));
    for (size_t j = 0; j < row.size(); ++j) {
      bias_.at({sequence.batch_idx, head_idx, head.q_indices()[n],
                static_cast<int64_t>(j) + sequence.leftpad}) += static_cast<double>(row[j]);
    }
  }
}

template <class Real>
void SharedGradients<Real>::add_slopes(const Sequence& sequence, int64_t head_idx,
                                       const PlainHead<Real>& head) {
  double sum = 0;
  for (size_t n = 0; n < head.q_indices().size(); ++n) {
    const int64_t position = head.q_indices()[n] + sequence.query_offset;
    const std::span<const Real> row = head.dlogits().row(static_cast<int64_t>(n));
    for (size_t j = 0; j < row.size(); ++j) {
      const auto distance = static_cast<double>(std::abs(position - static_cast<int64_t>(j)));
      sum -= static_cast<double>(row[j]) * distance;
    }
  }
  if (slopes_.target.ndim == 2) {
    slopes_.at({sequence.batch_idx, head_idx}) += sum;
  } else {
    slopes_.at({head_idx}) += sum;
  }
}

template <class Real>
void SharedGradients<Real>::add_aux(const Sequence& sequence, int64_t head_idx,
                                    const PlainHead<Real>& head) {
  const auto evaluator = [&](const variant::Expr& expr) {
    return variant::Evaluator(expr, bound_aux(expr, args_), bound_params(expr, args_));
  };
  variant::Variables at = attention_variables(problem_, sequence, head_idx);
  for (const variant::LoadSite& site : sites_) {
    Sum& sum = aux_[static_cast<size_t>(site.aux_idx)];
    if (!sum.target) continue;
    variant::Evaluator active = evaluator(site.active);
    variant::Evaluator derivative = evaluator(site.derivative);
    std::vector<variant::Evaluator> indices;
    for (const variant::Expr& index : site.index) indices.push_back(evaluator(index));
    for (size_t n = 0; n < head.q_indices().size(); ++n) {
      at.q_idx = head.q_indices()[n];
      const std::span<const Real> row = head.dlogits().row(static_cast<int64_t>(n));
      for (size_t j = 0; j < row.size(); ++j) {
        if (row[j] == 0) continue;  // not seen, or nothing to add
        at.k_idx = static_cast<int64_t>(j);
        at.score = head.score_inputs(n)[j];
        if (!active.truth(at)) continue;
        int64_t flat = 0;
        for (size_t d = 0; d < indices.size(); ++d) {
          flat = flat * sum.target.shape[d] + indices[d].integer(at);
        }
        sum.values[static_cast<size_t>(flat)] +=
            static_cast<double>(row[j]) * derivative.number(at);
      }
    }
  }
}

template <class Real>
void SharedGradients<Real>::write() const {
  for (const Sum* sum : {&bias_, &sink_, &slopes_}) {
    if (sum->target) from_numbers(sum->values, sum->target);
  }
  for (auto sum = aux_.rbegin(); sum != aux_.rend(); ++sum) {
    if (sum->target) from_numbers(sum->values, sum->target);
  }
}

template class SharedGradients<float>;
template class SharedGradients<double>;

}  // namespace flashtile::cli
