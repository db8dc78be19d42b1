// SPDX-License-Identifier: Apache-2.0
//
// What mamba1 means, the selective scan. For a channel, with d the step size and n over the state:
//
//   S_n = exp(d A_n) S_n + d u B_n      y = sum of S_n C_n + D u      o = y silu(z)
//
// and backwards:
//
//   dy = do silu(z), dz = do y silu'(z), dC = S dy, dS += C dy, dD += dy u
//   du = D dy + d (B.dS), dB = d u dS, dA += d exp(d A) S_{t-1} dS
//   dd = sum of dS_n (u B_n + A_n exp(d A_n) S_{t-1, n}), then dS is multiplied by exp(d A)
#include "ops/linear/activations.hpp"
#include "ops/linear/recurrent_head.hpp"
#include "ops/linear/step_size.hpp"
#include "ops/scan/scan.hpp"

namespace flashtile {
namespace {

/// A channel is a head; its state has `head_dim` elements.
class Mamba1Head : public RecurrentHead<Mamba1Head> {
 public:
  Mamba1Head(const LinearProblem& problem, const LinearArgs& args, const LinearSequence& sequence,
             int64_t head, SharedRows* shared, ParameterSums* sums)
      : RecurrentHead(problem, args, sequence, head),
        shared_(shared),
        sums_(sums),
        group_(problem.key_head_of(head)),
        u_(rows(args.inputs.v, head)),
        dt_(rows(args.inputs.dt, head)),
        z_(rows(args.inputs.z, head)),
        B_(rows(args.inputs.k, group_)),
        C_(rows(args.inputs.q, group_)) {}

  Numbers initial_state() const { return load(args_.initial_states.state, p_.head_dim); }
  Numbers final_gradient() const { return load(args_.dfinal_states.state, p_.head_dim); }

  void step(int64_t t, Numbers& state) const {
    const double d = step_at(t).value;
    for (int64_t n = 0; n < p_.head_dim; ++n) {
      double& s = state[static_cast<size_t>(n)];
      s = masked_product(std::exp(d * A(n)), s) + d * u_.load(t) * B_.load(t, n);
    }
  }

  void write_output(int64_t t, const Numbers& state) const {
    rows(args_.out, head_).store(t, 0, output(t, state) * gate(t));
  }
  void store_final(const Numbers& state) const { store(args_.final_states.state, state); }

  void add_output_gradient(int64_t t, const Numbers& state, Numbers& dstate) {
    const double dout = rows(args_.dout, head_).load(t);
    const double dy = dout * gate(t);
    if (z_) {
      rows(args_.gradients.z, head_).store(t, 0, dout * output(t, state) * silu_slope(z_.load(t)));
    }
    double* dC = row_of(shared_->dq[static_cast<size_t>(group_)], t, p_.head_dim);
    for (int64_t n = 0; n < p_.head_dim; ++n) {
      dC[n] += state[static_cast<size_t>(n)] * dy;
      dstate[static_cast<size_t>(n)] += C_.load(t, n) * dy;
    }
    sums_->add(args_.gradients.D, sequence_.batch_idx, head_, 0, dy * u_.load(t));
    du_ = skip() * dy;
  }

  void add_step_gradient(int64_t t, const Numbers& before, Numbers& dstate) {
    const StepSize step = step_at(t);
    const double d = step.value;
    const double u = u_.load(t);
    double* dB = row_of(shared_->dk[static_cast<size_t>(group_)], t, p_.head_dim);
    double dd = 0;
    for (int64_t n = 0; n < p_.head_dim; ++n) {
      double& ds = dstate[static_cast<size_t>(n)];
      du_ += d * B_.load(t, n) * ds;
      dB[n] += d * u * ds;
      dd += ds * u * B_.load(t, n);
      ds = masked_product(std::exp(d * A(n)), ds);
      const double dlog_decay = masked_product(ds, before[static_cast<size_t>(n)]);
      dd += A(n) * dlog_decay;
      sums_->add(args_.gradients.A, sequence_.batch_idx, head_, n, d * dlog_decay);
    }
    rows(args_.gradients.v, head_).store(t, 0, du_);
    rows(args_.gradients.dt, head_).store(t, 0, dd * step.slope);
    sums_->add(args_.gradients.dt_bias, sequence_.batch_idx, head_, 0, dd * step.slope);
  }

  void store_gradients(const Numbers& dstate) const { store(args_.dinitial_states.state, dstate); }

 private:
  StepSize step_at(int64_t t) const { return step_size(args_, dt_.load(t), head_); }
  double A(int64_t n) const { return load_parameter(args_.inputs.A, head_, n); }
  double skip() const { return args_.inputs.D ? load_parameter(args_.inputs.D, head_) : 0; }
  double gate(int64_t t) const { return z_ ? silu(z_.load(t)) : 1; }

  double output(int64_t t, const Numbers& state) const {
    double sum = skip() * u_.load(t);
    for (int64_t n = 0; n < p_.head_dim; ++n) {
      sum += state[static_cast<size_t>(n)] * C_.load(t, n);
    }
    return sum;
  }

  SharedRows* shared_;
  ParameterSums* sums_;
  int64_t group_;
  HeadRows u_, dt_, z_, B_, C_;
  double du_ = 0;  ///< of the row that is worked on
};

}  // namespace

LinearImplementation mamba1_reference(LinearPass pass) {
  return recurrent_reference<Mamba1Head>(pass);
}

}  // namespace flashtile
