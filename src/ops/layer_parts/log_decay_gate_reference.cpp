// SPDX-License-Identifier: Apache-2.0
//
// What log_decay_gate means, for each element, with y = x + bias and r = exp(A_log) or 1:
//
//   o = l sigmoid(r y) with lower_bound l; else -r softplus(y) with A_log; else logsigmoid(y);
//   over the divisor
#include "ops/layer_parts/layer_parts.hpp"
#include "ops/layer_parts/row_head.hpp"
#include "ops/linear/activations.hpp"

namespace flashtile {
namespace {

class LogDecayGateHead : public RowHead<LogDecayGateHead> {
 public:
  LogDecayGateHead(const LinearProblem& problem, const LinearArgs& args,
                   const LinearSequence& sequence, int64_t head, SharedRows*, ParameterSums* sums)
      : RowHead(problem, args, sequence, head),
        sums_(sums),
        rate_(args.inputs.A_log ? std::exp(load_parameter(args.inputs.A_log, head)) : 1),
        x_(rows(args.inputs.v, head)) {}

  void write_output(int64_t t, const Numbers&) const {
    const HeadRows out = rows(args_.out, head_);
    for (int64_t i = 0; i < p_.head_dim; ++i) out.store(t, i, gate(t, i).value);
  }

  void add_output_gradient(int64_t t, const Numbers&, Numbers&) {
    const HeadRows dout = rows(args_.dout, head_);
    const HeadRows dx = rows(args_.gradients.v, head_);
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      const Gate at = gate(t, i);
      dx.store(t, i, dout.load(t, i) * at.slope);
      sums_->add(args_.gradients.bias, sequence_.batch_idx, head_, i, dout.load(t, i) * at.slope);
      sums_->add(args_.gradients.A_log, sequence_.batch_idx, head_, i,
                 dout.load(t, i) * at.slope_of_A_log);
    }
  }

 private:
  struct Gate {
    double value = 0;
    double slope = 0;  ///< by x, and by the bias
    double slope_of_A_log = 0;
  };

  Gate gate(int64_t t, int64_t i) const {
    double y = x_.load(t, i);
    if (args_.inputs.bias) y += load_parameter(args_.inputs.bias, head_, i);
    Gate result;
    if (args_.lower_bound) {
      const double s = sigmoid(rate_ * y);
      const double slope = *args_.lower_bound * s * (1 - s) * rate_;
      result = {*args_.lower_bound * s, slope, slope * y};
    } else if (args_.inputs.A_log) {
      const double value = -rate_ * softplus(y);
      result = {value, -rate_ * sigmoid(y), value};
    } else {
      result = {log_sigmoid(y), sigmoid(-y), 0};
    }
    return {result.value / args_.divisor, result.slope / args_.divisor,
            result.slope_of_A_log / args_.divisor};
  }

  ParameterSums* sums_;
  double rate_;
  HeadRows x_;
};

}  // namespace

LinearImplementation log_decay_gate_reference(LinearPass pass) {
  return recurrent_reference<LogDecayGateHead>(pass);
}

}  // namespace flashtile
