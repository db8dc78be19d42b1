// SPDX-License-Identifier: Apache-2.0
//
// What short_conv means. For a channel, with past inputs as the state p, oldest first:
//
//   y = sum of weight_j p_j + weight_{W-1} x + bias,  o = silu(y) or y,  + x with `residual`
//
// and backwards dy = do silu'(y), dweight_j = dy p_j, dp_j += weight_j dy, dx = weight_{W-1} dy and
// what later rows give to x as their past.
#include "ops/layer_parts/layer_parts.hpp"
#include "ops/linear/activations.hpp"
#include "ops/linear/recurrent_head.hpp"

namespace flashtile {
namespace {

/// A channel is a head.
class ShortConvHead : public RecurrentHead<ShortConvHead> {
 public:
  ShortConvHead(const LinearProblem& problem, const LinearArgs& args,
                const LinearSequence& sequence, int64_t head, SharedRows*, ParameterSums* sums)
      : RecurrentHead(problem, args, sequence, head), sums_(sums), x_(rows(args.inputs.v, head)) {
    for (int64_t j = 0; j <= p_.num_past; ++j) {
      weight_.push_back(load_parameter(args.inputs.weight, head, j));
    }
  }

  Numbers initial_state() const { return load(args_.initial_states.state, p_.num_past); }
  Numbers final_gradient() const { return load(args_.dfinal_states.state, p_.num_past); }

  void step(int64_t t, Numbers& state) const {
    state.push_back(x_.load(t));
    state.erase(state.begin());
  }

  void write_output(int64_t t, const Numbers& state) const {
    const double y = sum(t, state);
    const double out = args_.silu ? silu(y) : y;
    rows(args_.out, head_).store(t, 0, out + (args_.residual ? x_.load(t) : 0));
  }
  void store_final(const Numbers& state) const { store(args_.final_states.state, state); }

  void add_step_gradient(int64_t, const Numbers&, Numbers& dstate) {
    dstate.insert(dstate.begin(), 0.0);
    dx_ = dstate.back();
    dstate.pop_back();
  }

  void add_output_gradient(int64_t t, const Numbers& state, Numbers& dstate) {
    const double dout = rows(args_.dout, head_).load(t);
    const double dy = args_.silu ? dout * silu_slope(sum(t, state)) : dout;
    const TensorView& dweight = args_.gradients.weight;
    for (int64_t j = 0; j < p_.num_past; ++j) {
      const auto n = static_cast<size_t>(j);
      sums_->add(dweight, sequence_.batch_idx, head_, j, dy * state[n]);
      dstate[n] += weight_[n] * dy;
    }
    sums_->add(dweight, sequence_.batch_idx, head_, p_.num_past, dy * x_.load(t));
    sums_->add(args_.gradients.bias, sequence_.batch_idx, head_, 0, dy);
    rows(args_.gradients.v, head_)
        .store(t, 0, dx_ + weight_.back() * dy + (args_.residual ? dout : 0));
  }

  void store_gradients(const Numbers& dstate) const { store(args_.dinitial_states.state, dstate); }

 private:
  double sum(int64_t t, const Numbers& state) const {
    double y = weight_.back() * x_.load(t);
    for (size_t j = 0; j < state.size(); ++j) y += weight_[j] * state[j];
    return y + (args_.inputs.bias ? load_parameter(args_.inputs.bias, head_) : 0);
  }

  ParameterSums* sums_;
  HeadRows x_;
  Numbers weight_;
  double dx_ = 0;  ///< of the row that is worked on, by later rows
};

}  // namespace

LinearImplementation short_conv_reference(LinearPass pass) {
  return recurrent_reference<ShortConvHead>(pass);
}

}  // namespace flashtile
