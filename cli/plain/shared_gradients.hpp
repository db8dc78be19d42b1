// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <vector>

#include "plain/attention_head.hpp"
#include "variant/expr/derivative.hpp"

namespace flashtile::cli {

/// Gradients that many heads add to: of bias, sink, ALiBi slopes and aux tensors. Summed in double;
/// safe from several threads.
template <class Real>
class SharedGradients {
 public:
  SharedGradients(const AttentionProblem& problem, const AttentionArgs& args);

  /// Adds the part of one head, after its backward().
  void add(const Sequence& sequence, int64_t head_idx, const PlainHead<Real>& head);
  /// Writes the sums.
  void write() const;

 private:
  struct Sum {
    explicit Sum(const TensorView& tensor)
        : target(tensor), values(tensor ? static_cast<size_t>(tensor.numel()) : 0) {}
    TensorView target;
    std::vector<double> values;
    double& at(std::initializer_list<int64_t> index);
  };

  void add_bias(const Sequence& sequence, int64_t head_idx, const PlainHead<Real>& head);
  void add_slopes(const Sequence& sequence, int64_t head_idx, const PlainHead<Real>& head);
  void add_aux(const Sequence& sequence, int64_t head_idx, const PlainHead<Real>& head);

  const AttentionProblem& problem_;
  const AttentionArgs& args_;
  std::mutex mutex_;
  Sum bias_, sink_, slopes_;
  std::vector<variant::LoadSite> sites_;
  std::vector<Sum> aux_;  ///< one for each aux tensor of the score
};

}  // namespace flashtile::cli
