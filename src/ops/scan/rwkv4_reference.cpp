// SPDX-License-Identifier: Apache-2.0
//
// What rwkv4 means. For a channel, with the state alpha, beta, eps and weights relative to the
// larger exponent, so that no exponential exceeds 1:
//
//   o = (exp(eps - t) alpha + exp(u + k - t) v) / (the same with beta and 1),   t = max(u + k, eps)
//   eps' = max(w + eps, k), alpha' = exp(w + eps - eps') alpha + exp(k - eps') v, beta' with 1 for
//   v
//
// Gradients are those of these lines as they stand; o does not depend on t, and eps' follows the
// larger of its two arguments, half of each where they are equal.
#include <limits>

#include "ops/linear/recurrent_head.hpp"
#include "ops/scan/scan.hpp"

namespace flashtile {
namespace {

constexpr size_t kAlpha = 0, kBeta = 1, kEps = 2;

/// What is kept and what is added, relative to the larger exponent.
struct Weights {
  Weights(double kept_exponent, double added_exponent)
      : top(std::fmax(kept_exponent, added_exponent)),
        kept(std::exp(kept_exponent - top)),
        added(std::exp(added_exponent - top)) {}
  double top, kept, added;
};

/// A channel is a head.
class Rwkv4Head : public RecurrentHead<Rwkv4Head> {
 public:
  Rwkv4Head(const LinearProblem& problem, const LinearArgs& args, const LinearSequence& sequence,
            int64_t head, SharedRows* shared, ParameterSums* sums)
      : RecurrentHead(problem, args, sequence, head),
        shared_(shared),
        sums_(sums),
        w_(load_parameter(args.inputs.g, head)),
        u_(load_parameter(args.inputs.u_bonus, head)),
        k_(rows(args.inputs.k, head)),
        v_(rows(args.inputs.v, head)) {}

  Numbers initial_state() const {
    if (!args_.initial_states.state) return {0, 0, -std::numeric_limits<double>::infinity()};
    return load_by_channel(args_.initial_states.state);
  }
  Numbers final_gradient() const { return load_by_channel(args_.dfinal_states.state); }

  void step(int64_t t, Numbers& state) const {
    const Weights by(w_ + state[kEps], k_.load(t));
    state = {by.kept * state[kAlpha] + by.added * v_.load(t), by.kept * state[kBeta] + by.added,
             by.top};
  }

  void write_output(int64_t t, const Numbers& state) const {
    const Weights by(state[kEps], u_ + k_.load(t));
    const double sum = by.kept * state[kAlpha] + by.added * v_.load(t);
    rows(args_.out, head_).store(t, 0, sum / (by.kept * state[kBeta] + by.added));
  }
  void store_final(const Numbers& state) const {
    store_by_channel(args_.final_states.state, state);
  }

  void add_step_gradient(int64_t t, const Numbers& before, Numbers& dstate) {
    const double v = v_.load(t);
    const double kept_exponent = w_ + before[kEps];
    const Weights by(kept_exponent, k_.load(t));
    double dkept = (dstate[kAlpha] * before[kAlpha] + dstate[kBeta] * before[kBeta]) * by.kept;
    double dadded = (dstate[kAlpha] * v + dstate[kBeta]) * by.added;
    const double dtop = dstate[kEps] - dkept - dadded;
    const double share = kept_exponent == k_.load(t) ? 0.5 : kept_exponent > k_.load(t) ? 1 : 0;
    dkept += share * dtop;
    dadded += (1 - share) * dtop;
    dv_ = dstate[kAlpha] * by.added;
    dk_ = dadded;
    sums_->add(args_.gradients.g, sequence_.batch_idx, head_, 0, dkept);
    dstate = {dstate[kAlpha] * by.kept, dstate[kBeta] * by.kept, dkept};
  }

  void add_output_gradient(int64_t t, const Numbers& state, Numbers& dstate) {
    const double v = v_.load(t);
    const Weights by(state[kEps], u_ + k_.load(t));
    const double sum = by.kept * state[kAlpha] + by.added * v;
    const double divisor = by.kept * state[kBeta] + by.added;
    const double dsum = rows(args_.dout, head_).load(t) / divisor;
    const double ddivisor = -dsum * sum / divisor;
    const double dadded = (dsum * v + ddivisor) * by.added;
    dstate[kAlpha] += dsum * by.kept;
    dstate[kBeta] += ddivisor * by.kept;
    dstate[kEps] += (dsum * state[kAlpha] + ddivisor * state[kBeta]) * by.kept;
    sums_->add(args_.gradients.u_bonus, sequence_.batch_idx, head_, 0, dadded);
    rows(args_.gradients.v, head_).store(t, 0, dv_ + dsum * by.added);
    shared_->dk[static_cast<size_t>(head_)][static_cast<size_t>(t)] = dk_ + dadded;
  }

  void store_gradients(const Numbers& dstate) const {
    store_by_channel(args_.dinitial_states.state, dstate);
  }

 private:
  // (sequences, 3, channels) as (sequences, channels, 3).
  Numbers load_by_channel(const TensorView& tensor) const {
    return load(tensor ? tensor.transposed(1, 2) : tensor, 3);
  }
  void store_by_channel(const TensorView& tensor, const Numbers& state) const {
    if (tensor) store(tensor.transposed(1, 2), state);
  }

  SharedRows* shared_;
  ParameterSums* sums_;
  double w_, u_;
  HeadRows k_, v_;
  double dk_ = 0, dv_ = 0;  ///< of the row that is worked on, by its step
};

}  // namespace

LinearImplementation rwkv4_reference(LinearPass pass) {
  return recurrent_reference<Rwkv4Head>(pass);
}

}  // namespace flashtile
