// SPDX-License-Identifier: Apache-2.0
//
// What feature_map means, for a head of a row: elu(x) + 1, relu(x), relu(x)^2, or softmax over the
// head.
#include <algorithm>

#include "ops/layer_parts/layer_parts.hpp"
#include "ops/layer_parts/row_head.hpp"

namespace flashtile {
namespace {

class FeatureMapHead : public RowHead<FeatureMapHead> {
 public:
  FeatureMapHead(const LinearProblem& problem, const LinearArgs& args,
                 const LinearSequence& sequence, int64_t head, SharedRows*, ParameterSums*)
      : RowHead(problem, args, sequence, head), x_(rows(args.inputs.v, head)) {}

  void write_output(int64_t t, const Numbers&) const {
    const Numbers mapped = map(t);
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      rows(args_.out, head_).store(t, i, mapped[static_cast<size_t>(i)]);
    }
  }

  void add_output_gradient(int64_t t, const Numbers&, Numbers&) const {
    const HeadRows dout = rows(args_.dout, head_);
    const Numbers mapped = map(t);
    double mean = 0;
    for (int64_t i = 0; i < p_.head_dim; ++i)
      mean += mapped[static_cast<size_t>(i)] * dout.load(t, i);
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      const double x = x_.load(t, i);
      const double gradient = dout.load(t, i);
      const double y = mapped[static_cast<size_t>(i)];
      double dx = gradient * (x > 0 ? 1 : 0);
      if (args_.feature_map == "elu") dx = gradient * std::fmin(y, 1.0);
      if (args_.feature_map == "relu2") dx = 2 * gradient * std::fmax(x, 0.0);
      if (args_.feature_map == "softmax") dx = y * (gradient - mean);
      rows(args_.gradients.v, head_).store(t, i, dx);
    }
  }

 private:
  Numbers map(int64_t t) const {
    Numbers row(static_cast<size_t>(p_.head_dim));
    for (size_t i = 0; i < row.size(); ++i) row[i] = x_.load(t, static_cast<int64_t>(i));
    if (args_.feature_map == "softmax") {
      const double top = *std::max_element(row.begin(), row.end());
      double sum = 0;
      for (double& x : row) sum += x = std::exp(x - top);
      for (double& x : row) x /= sum;
      return row;
    }
    for (double& x : row) {
      if (args_.feature_map == "elu") {
        x = x > 0 ? x + 1 : std::exp(x);
      } else {
        x = std::fmax(x, 0.0) * (args_.feature_map == "relu2" ? std::fmax(x, 0.0) : 1);
      }
    }
    return row;
  }

  HeadRows x_;
};

}  // namespace

LinearImplementation feature_map_reference(LinearPass pass) {
  return recurrent_reference<FeatureMapHead>(pass);
}

}  // namespace flashtile
