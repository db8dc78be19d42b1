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
#include <cmath>

#include "ops/linear/state_history.hpp"
#include "ops/scalar_decay/gates.hpp"
#include "ops/scalar_decay/scalar_decay.hpp"

namespace flashtile {
namespace {

using Numbers = std::vector<double>;

double* at(Numbers& numbers, int64_t row, int64_t dim) { return numbers.data() + row * dim; }
const double* at(const Numbers& numbers, int64_t row, int64_t dim) {
  return numbers.data() + row * dim;
}

Numbers load_rows(const HeadRows& rows, int64_t length, int64_t dim) {
  Numbers numbers;
  for (int64_t t = 0; t < length; ++t) {
    for (int64_t i = 0; i < dim; ++i) numbers.push_back(rows.load(t, i));
  }
  return numbers;
}

void store_rows(const HeadRows& rows, const Numbers& numbers, int64_t length, int64_t dim) {
  for (int64_t t = 0; t < length; ++t) {
    for (int64_t i = 0; i < dim; ++i) rows.store(t, i, at(numbers, t, dim)[i]);
  }
}

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

/// One state head of one sequence. Its state is S by rows, then n.
class StateHead {
 public:
  StateHead(const LinearProblem& problem, const LinearArgs& args, const LinearSequence& sequence,
            int64_t head)
      : p_(problem),
        args_(args),
        sequence_(sequence),
        head_(head),
        size_(problem.head_dim * problem.head_dim_v),
        gates_(scalar_gates(problem, args, sequence, head)),
        k_(load_rows(rows(args.inputs.k, problem.key_head_of(head)), sequence.length,
                     problem.head_dim)),
        v_(load_rows(rows(args.inputs.v, head), sequence.length, problem.head_dim_v)) {}

  void run_forward() const {
    Numbers state = initial_state();
    for (int64_t t = 0; t < sequence_.length; ++t) {
      step(t, state);
      for (int64_t member = 0; member < p_.heads_a_state(); ++member) {
        const int64_t head_out = head_ * p_.heads_a_state() + member;
        const Numbers out = output(t, state, load_q(t, head_out)).out;
        const HeadRows out_rows = rows(args_.out, head_out);
        for (int64_t j = 0; j < p_.head_dim_v; ++j) {
          out_rows.store(t, j, out[static_cast<size_t>(j)] + skip(j) * at(v_, t, p_.head_dim_v)[j]);
        }
      }
    }
    store_final(state);
  }

  /// `dq`, of all heads, and `dk`, of this state's, are added to. `dD` gets do v for each value
  /// dimension.
  void run_backward(std::vector<Numbers>& dq, Numbers& dk, SharedGateGradients& shared,
                    Numbers& dD) const {
    const auto step_of = [this](int64_t t, Numbers& state) { step(t, state); };
    StateHistory history(sequence_.length, initial_state(), step_of);
    Numbers dstate = incoming_gradient();
    Numbers dv(v_.size(), 0.0);
    Numbers dlog_decay(gates_.log_decay.size()), dweight(gates_.log_decay.size());
    Numbers state = history.last();
    for (int64_t t = sequence_.length - 1; t >= 0; --t) {
      for (int64_t member = 0; member < p_.heads_a_state(); ++member) {
        add_output_gradient(t, head_ * p_.heads_a_state() + member, state, dstate, dq, dv, dD);
      }
      state = history.before(t);
      add_input_gradient(t, dstate, dk, dv, dweight[static_cast<size_t>(t)]);
      dlog_decay[static_cast<size_t>(t)] = decay_gradient(t, state, dstate);
    }
    store_rows(rows(args_.gradients.v, head_), dv, sequence_.length, p_.head_dim_v);
    store_gate_gradients(p_, args_, sequence_, head_, gates_, dlog_decay, dweight, shared);
    store_parts(args_.dinitial_states, dstate);
  }

 private:
  HeadRows rows(const TensorView& tensor, int64_t head) const {
    return timed_rows(p_, tensor, sequence_, head);
  }

  bool has_norm() const { return p_.normalizer != LinearNormalizer::kNone; }

  Numbers load_parts(const LinearStates& states) const {
    Numbers numbers = load_state(states.state, sequence_.batch_idx, head_, size_);
    if (!has_norm()) return numbers;
    const Numbers norm = load_state(states.norm, sequence_.batch_idx, head_, p_.head_dim);
    numbers.insert(numbers.end(), norm.begin(), norm.end());
    return numbers;
  }
  Numbers initial_state() const { return load_parts(args_.initial_states); }
  Numbers incoming_gradient() const { return load_parts(args_.dfinal_states); }

  void store_parts(const LinearStates& states, const Numbers& numbers) const {
    store_state(states.state, sequence_.batch_idx, head_, numbers);
    if (!has_norm()) return;
    const Numbers norm(numbers.begin() + size_, numbers.end());
    store_state(states.norm, sequence_.batch_idx, head_, norm);
  }

  void store_final(const Numbers& state) const {
    store_parts(args_.final_states, state);
    store_state(args_.final_states.max, sequence_.batch_idx, head_, {gates_.last_max});
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

  /// What a decay of exactly 0 leaves is 0, whatever was there.
  static void scale_by(double factor, Numbers& numbers) {
    for (double& x : numbers) x = factor == 0 ? 0 : factor * x;
  }

  void step(int64_t t, Numbers& state) const {
    scale_by(std::exp(gates_.log_decay[static_cast<size_t>(t)]), state);
    const double weight = gates_.weight[static_cast<size_t>(t)];
    const double* k = at(k_, t, p_.head_dim);
    const double* v = at(v_, t, p_.head_dim_v);
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      for (int64_t j = 0; j < p_.head_dim_v; ++j)
        at(state, i, p_.head_dim_v)[j] += weight * k[i] * v[j];
      if (has_norm()) state[static_cast<size_t>(size_ + i)] += weight * k[i];
    }
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
      for (int64_t j = 0; j < p_.head_dim_v; ++j) {
        result.out[static_cast<size_t>(j)] += qi * at(state, i, p_.head_dim_v)[j];
      }
      if (has_norm()) d += qi * state[static_cast<size_t>(size_ + i)];
    }
    const double floor = gates_.floor.empty() ? 0 : gates_.floor[static_cast<size_t>(t)];
    result.divisor = divisor(p_.normalizer, d, floor);
    for (double& x : result.out) x /= result.divisor.value;
    return result;
  }

  void add_output_gradient(int64_t t, int64_t head_out, const Numbers& state, Numbers& dstate,
                           std::vector<Numbers>& dq, Numbers& dv, Numbers& dD) const {
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
      at(dv, t, p_.head_dim_v)[j] += skip(j) * gradient;
      dD[n] += gradient * at(v_, t, p_.head_dim_v)[j];
    }
    dd *= result.divisor.slope;
    double* dq_row = at(dq[static_cast<size_t>(p_.query_head_of(head_out))], t, p_.head_dim);
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      const double qi = q[static_cast<size_t>(i)];
      for (int64_t j = 0; j < p_.head_dim_v; ++j) {
        dq_row[i] += p_.scale * at(state, i, p_.head_dim_v)[j] * dy[static_cast<size_t>(j)];
        at(dstate, i, p_.head_dim_v)[j] += qi * dy[static_cast<size_t>(j)];
      }
      if (!has_norm()) continue;
      dq_row[i] += p_.scale * dd * state[static_cast<size_t>(size_ + i)];
      dstate[static_cast<size_t>(size_ + i)] += qi * dd;
    }
  }

  void add_input_gradient(int64_t t, const Numbers& dstate, Numbers& dk, Numbers& dv,
                          double& dweight) const {
    const double weight = gates_.weight[static_cast<size_t>(t)];
    const double* k = at(k_, t, p_.head_dim);
    const double* v = at(v_, t, p_.head_dim_v);
    dweight = 0;
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      double sum = has_norm() ? dstate[static_cast<size_t>(size_ + i)] : 0;
      for (int64_t j = 0; j < p_.head_dim_v; ++j) {
        sum += at(dstate, i, p_.head_dim_v)[j] * v[j];
        at(dv, t, p_.head_dim_v)[j] += weight * at(dstate, i, p_.head_dim_v)[j] * k[i];
      }
      at(dk, t, p_.head_dim)[i] += weight * sum;
      dweight += k[i] * sum;
    }
  }

  /// Gradient of log_decay; takes `dstate` to the state before the row.
  double decay_gradient(int64_t t, const Numbers& before, Numbers& dstate) const {
    scale_by(std::exp(gates_.log_decay[static_cast<size_t>(t)]), dstate);
    double sum = 0;
    for (size_t n = 0; n < dstate.size(); ++n) {
      if (dstate[n] != 0) sum += before[n] * dstate[n];
    }
    return sum;
  }

  const LinearProblem& p_;
  const LinearArgs& args_;
  const LinearSequence& sequence_;
  int64_t head_;
  int64_t size_;  ///< of S
  ScalarGates gates_;
  Numbers k_, v_;
};

std::string refuse(const LinearProblem& problem) {
  if (problem.device.type != DeviceType::kCpu) return "runs on the CPU, tensors are on a device";
  return {};
}

LinearPlan plan(const LinearProblem&) { return {"reference"}; }

void launch_forward(const LinearProblem& problem, const LinearPlan&, const LinearArgs& args,
                    const Context&) {
  for (const LinearSequence& sequence : linear_sequences(problem, args)) {
    for (int64_t h = 0; h < problem.num_state_heads; ++h) {
      StateHead(problem, args, sequence, h).run_forward();
    }
  }
}

/// dD is a sum over rows and sequences, for (heads) over value dimensions as well.
void store_skip_gradient(const LinearProblem& problem, const LinearArgs& args,
                         const std::vector<Numbers>& dD) {
  const TensorView& tensor = args.gradients.D;
  if (!tensor) return;
  for (int64_t h = 0; h < problem.num_state_heads; ++h) {
    double sum = 0;
    for (int64_t j = 0; j < problem.head_dim_v; ++j) {
      const double x = dD[static_cast<size_t>(h)][static_cast<size_t>(j)];
      if (tensor.ndim > 1) store_float(tensor.at({h, j}), tensor.dtype, x);
      sum += x;
    }
    if (tensor.ndim == 1) store_float(tensor.at({h}), tensor.dtype, sum);
  }
}

void launch_backward(const LinearProblem& problem, const LinearPlan&, const LinearArgs& args,
                     const Context&) {
  const auto zeros = [](int64_t heads, int64_t size) {
    return std::vector<Numbers>(static_cast<size_t>(heads), Numbers(static_cast<size_t>(size)));
  };
  SharedGateGradients shared(problem);
  std::vector<Numbers> dD = zeros(problem.num_state_heads, problem.head_dim_v);
  for (const LinearSequence& sequence : linear_sequences(problem, args)) {
    const int64_t size = sequence.length * problem.head_dim;
    std::vector<Numbers> dq = zeros(problem.num_query_heads, size);
    std::vector<Numbers> dk = zeros(problem.num_key_heads, size);
    for (int64_t h = 0; h < problem.num_state_heads; ++h) {
      StateHead(problem, args, sequence, h)
          .run_backward(dq, dk[static_cast<size_t>(problem.key_head_of(h))], shared,
                        dD[static_cast<size_t>(h)]);
    }
    for (int64_t h = 0; h < problem.num_query_heads; ++h) {
      store_rows(timed_rows(problem, args.gradients.q, sequence, h), dq[static_cast<size_t>(h)],
                 sequence.length, problem.head_dim);
    }
    for (int64_t h = 0; h < problem.num_key_heads; ++h) {
      store_rows(timed_rows(problem, args.gradients.k, sequence, h), dk[static_cast<size_t>(h)],
                 sequence.length, problem.head_dim);
    }
  }
  shared.store(args);
  store_skip_gradient(problem, args, dD);
}

}  // namespace

LinearImplementation scalar_decay_reference(LinearPass pass) {
  return {"reference", refuse, plan,
          pass == LinearPass::kBackward ? launch_backward : launch_forward};
}

}  // namespace flashtile
