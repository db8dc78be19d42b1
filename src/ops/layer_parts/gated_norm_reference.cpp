// SPDX-License-Identifier: Apache-2.0
//
// What gated_norm means, for a head of a row, with a = silu(z), sigmoid(z), or 1 without z:
//
//   y = x, or x a with gate_first;  u = y / sqrt(mean of y^2 + eps);  o = weight u, times a if it
//   is not in y
//
// and backwards, with du the gradient of u: dy = (du - u mean of (u du)) / sqrt(mean of y^2 + eps).
#include "ops/layer_parts/layer_parts.hpp"
#include "ops/layer_parts/row_head.hpp"
#include "ops/linear/activations.hpp"

namespace flashtile {
namespace {

class GatedNormHead : public RowHead<GatedNormHead> {
 public:
  GatedNormHead(const LinearProblem& problem, const LinearArgs& args,
                const LinearSequence& sequence, int64_t head, SharedRows*, ParameterSums* sums)
      : RowHead(problem, args, sequence, head),
        sums_(sums),
        x_(rows(args.inputs.v, head)),
        z_(rows(args.inputs.z, head)) {}

  void write_output(int64_t t, const Numbers&) const {
    const Norm norm(*this, t);
    const HeadRows out = rows(args_.out, head_);
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      const double after = args_.gate_first ? 1 : gate(t, i);
      out.store(t, i, weight(i) * norm.u[static_cast<size_t>(i)] * after);
    }
  }

  void add_output_gradient(int64_t t, const Numbers&, Numbers&) {
    const Norm norm(*this, t);
    const HeadRows dout = rows(args_.dout, head_);
    Numbers du(norm.u.size());
    double mean = 0;
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      const auto n = static_cast<size_t>(i);
      const double after = args_.gate_first ? 1 : gate(t, i);
      du[n] = dout.load(t, i) * weight(i) * after;
      mean += norm.u[n] * du[n] / static_cast<double>(p_.head_dim);
      // All heads share the weight.
      sums_->add(args_.gradients.weight, sequence_.batch_idx, /*head=*/i, 0,
                 dout.load(t, i) * norm.u[n] * after);
    }
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      const auto n = static_cast<size_t>(i);
      const double dy = norm.factor * (du[n] - norm.u[n] * mean);
      const double before = args_.gate_first ? gate(t, i) : 1;
      rows(args_.gradients.v, head_).store(t, i, dy * before);
      const double dgate =
          args_.gate_first ? dy * x_.load(t, i) : dout.load(t, i) * weight(i) * norm.u[n];
      rows(args_.gradients.z, head_).store(t, i, dgate * gate_slope(t, i));
    }
  }

 private:
  /// A row after the norm.
  struct Norm {
    Norm(const GatedNormHead& head, int64_t t) {
      double mean = 0;
      const int64_t dim = head.p_.head_dim;
      for (int64_t i = 0; i < dim; ++i) {
        const double before = head.args_.gate_first ? head.gate(t, i) : 1;
        u.push_back(head.x_.load(t, i) * before);
        mean += u.back() * u.back() / static_cast<double>(dim);
      }
      factor = 1 / std::sqrt(mean + head.args_.eps);
      for (double& each : u) each *= factor;
    }
    Numbers u;
    double factor = 1;
  };

  double weight(int64_t i) const {
    return args_.inputs.weight ? load_parameter(args_.inputs.weight, i) : 1;
  }
  double gate(int64_t t, int64_t i) const {
    if (!z_) return 1;
    return args_.is_sigmoid ? sigmoid(z_.load(t, i)) : silu(z_.load(t, i));
  }
  double gate_slope(int64_t t, int64_t i) const {
    const double s = sigmoid(z_.load(t, i));
    return args_.is_sigmoid ? s * (1 - s) : silu_slope(z_.load(t, i));
  }

  ParameterSums* sums_;
  HeadRows x_, z_;
};

}  // namespace

LinearImplementation gated_norm_reference(LinearPass pass) {
  return recurrent_reference<GatedNormHead>(pass);
}

}  // namespace flashtile
