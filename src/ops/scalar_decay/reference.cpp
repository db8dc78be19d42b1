// SPDX-License-Identifier: Apache-2.0
//
// What the scalar-decay family means, in double and one row after the other. For a state head, with
// a = log_decay and w = weight of gates.hpp:
//
//   S_t = exp(a_t) S_{t-1} + w_t k_t v_t'      n_t = exp(a_t) n_{t-1} + w_t k_t
//   y_t = S_t' (scale q_t)                     d_t = (scale q_t).n_t
//   o_t = y_t / divisor(d_t) + D v_t
//
// and backwards, with dS the gradient of S_t and dn that of n_t:
//
//   dy = do / divisor, dd = -(o.do) / divisor where the divisor follows d
//   dq = scale (S dy + dd n), dS += scale q dy', dn += scale dd q
//   dk = w (dS v + dn), dv = w dS' k + D do, dw = k.(dS v + dn)
//   da = exp(a) (<S_{t-1}, dS> + n_{t-1}.dn), then dS and dn are multiplied by exp(a)
#include "ops/linear/recurrent_head.hpp"
#include "ops/scalar_decay/gates.hpp"
#include "ops/scalar_decay/scalar_decay.hpp"

namespace flashtile {
namespace {

/// The divisor of an output, and its derivative by d.
struct Divisor {
  double value = 1;
  double slope = 0;
};

Divisor divisor(LinearNormalizer normalizer, double d, double floor) {
  switch (normalizer) {
    case LinearNormalizer::kNone:
      return {};
    case LinearNormalizer::kSum:
      return {d + 1e-10, 1};
    case LinearNormalizer::kAtLeastOne:
      floor = 1;
      break;
    case LinearNormalizer::kAtLeastFloor:
      break;
  }
  const bool is_above = std::fabs(d) > floor;
  return {std::fmax(std::fabs(d), floor) + 1e-6, is_above ? std::copysign(1.0, d) : 0};
}

/// Its state is S by rows, then n.
class ScalarDecayHead : public RecurrentHead<ScalarDecayHead> {
 public:
  ScalarDecayHead(const LinearProblem& problem, const LinearArgs& args,
                  const LinearSequence& sequence, int64_t head, SharedRows* shared,
                  ParameterSums* sums)
      : RecurrentHead(problem, args, sequence, head),
        shared_(shared),
        sums_(sums),
        size_(problem.head_dim * problem.head_dim_v),
        gates_(scalar_gates(problem, args, sequence, head)),
        k_(load_rows(rows(args.inputs.k, problem.key_head_of(head)), sequence.length,
                     problem.head_dim)),
        v_(own_rows(args.inputs.v, problem.head_dim_v)),
        dv_(shared == nullptr ? 0 : v_.size(), 0.0),
        dlog_decay_(gates_.log_decay.size(), 0.0),
        dweight_(gates_.log_decay.size(), 0.0) {}

  Numbers initial_state() const { return load_parts(args_.initial_states); }
  Numbers final_gradient() const { return load_parts(args_.dfinal_states); }

  void step(int64_t t, Numbers& state) const {
    decay(t, state);
    const double weight = gates_.weight[static_cast<size_t>(t)];
    const double* k = row_of(k_, t, p_.head_dim);
    const double* v = row_of(v_, t, p_.head_dim_v);
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      double* row = row_of(state, i, p_.head_dim_v);
      for (int64_t j = 0; j < p_.head_dim_v; ++j) row[j] += weight * k[i] * v[j];
      if (has_norm()) state[static_cast<size_t>(size_ + i)] += weight * k[i];
    }
  }

  void write_output(int64_t t, const Numbers& state) const {
    for (int64_t head_out = first_output(); head_out < end_output(); ++head_out) {
      const Numbers out = output(t, state, load_q(t, head_out)).out;
      const HeadRows out_rows = rows(args_.out, head_out);
      for (int64_t j = 0; j < p_.head_dim_v; ++j) {
        out_rows.store(t, j,
                       out[static_cast<size_t>(j)] + skip(j) * row_of(v_, t, p_.head_dim_v)[j]);
      }
    }
  }

  void store_final(const Numbers& state) const {
    store_parts(args_.final_states, state);
    store(args_.final_states.max, {gates_.last_max});
  }

  void add_output_gradient(int64_t t, const Numbers& state, Numbers& dstate) {
    for (int64_t head_out = first_output(); head_out < end_output(); ++head_out) {
      add_output_gradient(t, head_out, state, dstate);
    }
  }

  void add_step_gradient(int64_t t, const Numbers& before, Numbers& dstate) {
    const double weight = gates_.weight[static_cast<size_t>(t)];
    const double* k = row_of(k_, t, p_.head_dim);
    const double* v = row_of(v_, t, p_.head_dim_v);
    double* dk = row_of(shared_->dk[static_cast<size_t>(p_.key_head_of(head_))], t, p_.head_dim);
    double* dv = row_of(dv_, t, p_.head_dim_v);
    double& dweight = dweight_[static_cast<size_t>(t)];
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      const double* row = row_of(dstate, i, p_.head_dim_v);
      double sum = has_norm() ? dstate[static_cast<size_t>(size_ + i)] : 0;
      for (int64_t j = 0; j < p_.head_dim_v; ++j) {
        sum += row[j] * v[j];
        dv[j] += weight * row[j] * k[i];
      }
      dk[i] += weight * sum;
      dweight += k[i] * sum;
    }
    decay(t, dstate);
    double& dlog_decay = dlog_decay_[static_cast<size_t>(t)];
    for (size_t n = 0; n < dstate.size(); ++n) {
      if (dstate[n] != 0) dlog_decay += before[n] * dstate[n];
    }
  }

  void store_gradients(const Numbers& dstate) const {
    store_own_rows(args_.gradients.v, dv_, p_.head_dim_v);
    store_gate_gradients(p_, args_, sequence_, head_, gates_, dlog_decay_, dweight_, *sums_);
    store_parts(args_.dinitial_states, dstate);
  }

 private:
  bool has_norm() const { return p_.normalizer != LinearNormalizer::kNone; }

  Numbers load_parts(const LinearStates& states) const {
    Numbers numbers = load(states.state, size_);
    if (!has_norm()) return numbers;
    const Numbers norm = load(states.norm, p_.head_dim);
    numbers.insert(numbers.end(), norm.begin(), norm.end());
    return numbers;
  }

  void store_parts(const LinearStates& states, const Numbers& numbers) const {
    store(states.state, numbers);
    if (has_norm()) store(states.norm, Numbers(numbers.begin() + size_, numbers.end()));
  }

  Numbers load_q(int64_t t, int64_t head_out) const {
    const HeadRows q = rows(args_.inputs.q, p_.query_head_of(head_out));
    Numbers numbers(static_cast<size_t>(p_.head_dim));
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      numbers[static_cast<size_t>(i)] = p_.scale * q.load(t, i);
    }
    return numbers;
  }

  double skip(int64_t j) const {
    return args_.inputs.D ? load_parameter(args_.inputs.D, head_, j) : 0;
  }

  void decay(int64_t t, Numbers& state) const {
    const double factor = std::exp(gates_.log_decay[static_cast<size_t>(t)]);
    for (double& x : state) x = masked_product(factor, x);
  }

  struct Output {
    Numbers out;  ///< without the skip
    Divisor divisor;
  };

  Output output(int64_t t, const Numbers& state, const Numbers& q) const {
    Output result;
    result.out.assign(static_cast<size_t>(p_.head_dim_v), 0.0);
    double d = 0;
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      const double qi = q[static_cast<size_t>(i)];
      const double* row = row_of(state, i, p_.head_dim_v);
      for (int64_t j = 0; j < p_.head_dim_v; ++j) result.out[static_cast<size_t>(j)] += qi * row[j];
      if (has_norm()) d += qi * state[static_cast<size_t>(size_ + i)];
    }
    const double floor = gates_.floor.empty() ? 0 : gates_.floor[static_cast<size_t>(t)];
    result.divisor = divisor(p_.normalizer, d, floor);
    for (double& x : result.out) x /= result.divisor.value;
    return result;
  }

  void add_output_gradient(int64_t t, int64_t head_out, const Numbers& state, Numbers& dstate) {
    const Numbers q = load_q(t, head_out);
    const Output result = output(t, state, q);
    const HeadRows dout = rows(args_.dout, head_out);
    Numbers dy(static_cast<size_t>(p_.head_dim_v));
    double dd = 0;
    for (int64_t j = 0; j < p_.head_dim_v; ++j) {
      const auto n = static_cast<size_t>(j);
      const double gradient = dout.load(t, j);
      dy[n] = gradient / result.divisor.value;
      dd -= result.out[n] * dy[n];
      row_of(dv_, t, p_.head_dim_v)[j] += skip(j) * gradient;
      sums_->add(args_.gradients.D, sequence_.batch_idx, head_, j,
                 gradient * row_of(v_, t, p_.head_dim_v)[j]);
    }
    dd *= result.divisor.slope;
    double* dq =
        row_of(shared_->dq[static_cast<size_t>(p_.query_head_of(head_out))], t, p_.head_dim);
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      const double qi = q[static_cast<size_t>(i)];
      const double* row = row_of(state, i, p_.head_dim_v);
      double* drow = row_of(dstate, i, p_.head_dim_v);
      for (int64_t j = 0; j < p_.head_dim_v; ++j) {
        dq[i] += p_.scale * row[j] * dy[static_cast<size_t>(j)];
        drow[j] += qi * dy[static_cast<size_t>(j)];
      }
      if (!has_norm()) continue;
      dq[i] += p_.scale * dd * state[static_cast<size_t>(size_ + i)];
      dstate[static_cast<size_t>(size_ + i)] += qi * dd;
    }
  }

  SharedRows* shared_;
  ParameterSums* sums_;
  int64_t size_;  ///< of S
  ScalarGates gates_;
  Numbers k_, v_;
  Numbers dv_, dlog_decay_, dweight_;
};

}  // namespace

LinearImplementation scalar_decay_reference(LinearPass pass) {
  return recurrent_reference<ScalarDecayHead>(pass);
}

}  // namespace flashtile
