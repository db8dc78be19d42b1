// SPDX-License-Identifier: Apache-2.0
//
// What gated slot attention means, in double and one row after the other:
//
//   Sk_t = Sk_{t-1} Diag(exp(g_t)) + k_t s_t'      Sv_t = Diag(exp(g_t)) Sv_{t-1} + s_t v_t'
//   p_t = softmax(Sk_t' (scale q_t))               o_t = Sv_t' p_t
//
// and backwards, with dSk and dSv the gradients of Sk_t and Sv_t:
//
//   dp = Sv do, dSv += p do', dl = p (dp - p.dp), dq = scale Sk dl, dSk += scale q dl'
//   dk = dSk s, ds = dSk' k + dSv v, dv = dSv' s
//   dg_m = exp(g_m) (column m of Sk_{t-1}.dSk + row m of Sv_{t-1}.dSv), then both are multiplied
#include <algorithm>

#include "ops/linear/recurrent_head.hpp"
#include "ops/vector_decay/vector_decay.hpp"

namespace flashtile {
namespace {

/// Its state is the transposed Sk, so that a slot is a row, then Sv.
class SlotsHead : public RecurrentHead<SlotsHead> {
 public:
  SlotsHead(const LinearProblem& problem, const LinearArgs& args, const LinearSequence& sequence,
            int64_t head, SharedRows* shared, ParameterSums*)
      : RecurrentHead(problem, args, sequence, head),
        shared_(shared),
        num_slots_(problem.num_slots),
        k_(own_rows(args.inputs.k, problem.head_dim)),
        v_(own_rows(args.inputs.v, problem.head_dim_v)),
        s_(own_rows(args.inputs.s, num_slots_)),
        g_(own_rows(args.inputs.g, num_slots_)),
        dv_(v_.size(), 0.0),
        ds_(s_.size(), 0.0),
        dg_(g_.size(), 0.0) {}

  Numbers initial_state() const { return load_parts(args_.initial_states); }
  Numbers final_gradient() const { return load_parts(args_.dfinal_states); }

  void step(int64_t t, Numbers& state) const {
    for (int64_t m = 0; m < num_slots_; ++m) {
      const double decay = std::exp(row_of(g_, t, num_slots_)[m]);
      const double s = row_of(s_, t, num_slots_)[m];
      double* key = key_slot(state, m);
      double* value = value_slot(state, m);
      for (int64_t i = 0; i < p_.head_dim; ++i) {
        key[i] = masked_product(decay, key[i]) + s * row_of(k_, t, p_.head_dim)[i];
      }
      for (int64_t j = 0; j < p_.head_dim_v; ++j) {
        value[j] = masked_product(decay, value[j]) + s * row_of(v_, t, p_.head_dim_v)[j];
      }
    }
  }

  void write_output(int64_t t, const Numbers& state) const {
    for (int64_t head_out = first_output(); head_out < end_output(); ++head_out) {
      const Numbers p = weights(t, head_out, state);
      const HeadRows out = rows(args_.out, head_out);
      for (int64_t j = 0; j < p_.head_dim_v; ++j) {
        double sum = 0;
        for (int64_t m = 0; m < num_slots_; ++m) {
          sum += p[static_cast<size_t>(m)] * value_slot(state, m)[j];
        }
        out.store(t, j, sum);
      }
    }
  }

  void store_final(const Numbers& state) const { store_parts(args_.final_states, state); }

  void add_output_gradient(int64_t t, const Numbers& state, Numbers& dstate) {
    for (int64_t head_out = first_output(); head_out < end_output(); ++head_out) {
      const Numbers p = weights(t, head_out, state);
      const HeadRows dout = rows(args_.dout, head_out);
      Numbers dp(p.size(), 0.0);
      double mean = 0;
      for (int64_t m = 0; m < num_slots_; ++m) {
        const auto n = static_cast<size_t>(m);
        for (int64_t j = 0; j < p_.head_dim_v; ++j) {
          dp[n] += value_slot(state, m)[j] * dout.load(t, j);
          value_slot(dstate, m)[j] += p[n] * dout.load(t, j);
        }
        mean += p[n] * dp[n];
      }
      const HeadRows q = rows(args_.inputs.q, head_out);
      double* dq = row_of(shared_->dq[static_cast<size_t>(head_out)], t, p_.head_dim);
      for (int64_t m = 0; m < num_slots_; ++m) {
        const auto n = static_cast<size_t>(m);
        const double dlogit = p[n] * (dp[n] - mean);
        for (int64_t i = 0; i < p_.head_dim; ++i) {
          dq[i] += p_.scale * key_slot(state, m)[i] * dlogit;
          key_slot(dstate, m)[i] += p_.scale * q.load(t, i) * dlogit;
        }
      }
    }
  }

  void add_step_gradient(int64_t t, const Numbers& before, Numbers& dstate) {
    double* dk = row_of(shared_->dk[static_cast<size_t>(head_)], t, p_.head_dim);
    for (int64_t m = 0; m < num_slots_; ++m) {
      const double decay = std::exp(row_of(g_, t, num_slots_)[m]);
      const double s = row_of(s_, t, num_slots_)[m];
      double& ds = row_of(ds_, t, num_slots_)[m];
      double& dg = row_of(dg_, t, num_slots_)[m];
      double* dkey = key_slot(dstate, m);
      double* dvalue = value_slot(dstate, m);
      for (int64_t i = 0; i < p_.head_dim; ++i) {
        dk[i] += dkey[i] * s;
        ds += dkey[i] * row_of(k_, t, p_.head_dim)[i];
        dkey[i] = masked_product(decay, dkey[i]);
        dg += masked_product(dkey[i], key_slot(before, m)[i]);
      }
      for (int64_t j = 0; j < p_.head_dim_v; ++j) {
        row_of(dv_, t, p_.head_dim_v)[j] += dvalue[j] * s;
        ds += dvalue[j] * row_of(v_, t, p_.head_dim_v)[j];
        dvalue[j] = masked_product(decay, dvalue[j]);
        dg += masked_product(dvalue[j], value_slot(before, m)[j]);
      }
    }
  }

  void store_gradients(const Numbers& dstate) const {
    store_own_rows(args_.gradients.v, dv_, p_.head_dim_v);
    store_own_rows(args_.gradients.s, ds_, num_slots_);
    store_own_rows(args_.gradients.g, dg_, num_slots_);
    store_parts(args_.dinitial_states, dstate);
  }

 private:
  double* key_slot(Numbers& state, int64_t m) const { return row_of(state, m, p_.head_dim); }
  const double* key_slot(const Numbers& state, int64_t m) const {
    return row_of(state, m, p_.head_dim);
  }
  int64_t value_begin(int64_t m) const { return num_slots_ * p_.head_dim + m * p_.head_dim_v; }
  double* value_slot(Numbers& state, int64_t m) const { return state.data() + value_begin(m); }
  const double* value_slot(const Numbers& state, int64_t m) const {
    return state.data() + value_begin(m);
  }

  Numbers load_parts(const LinearStates& states) const {
    const Numbers keys = load(states.state_k, p_.head_dim * num_slots_);
    Numbers state(keys.size());
    for (int64_t m = 0; m < num_slots_; ++m) {
      for (int64_t i = 0; i < p_.head_dim; ++i) {
        key_slot(state, m)[i] = row_of(keys, i, num_slots_)[m];
      }
    }
    const Numbers values = load(states.state, num_slots_ * p_.head_dim_v);
    state.insert(state.end(), values.begin(), values.end());
    return state;
  }

  void store_parts(const LinearStates& states, const Numbers& state) const {
    Numbers keys(static_cast<size_t>(p_.head_dim * num_slots_));
    for (int64_t m = 0; m < num_slots_; ++m) {
      for (int64_t i = 0; i < p_.head_dim; ++i) {
        row_of(keys, i, num_slots_)[m] = key_slot(state, m)[i];
      }
    }
    store(states.state_k, keys);
    store(states.state, Numbers(state.begin() + value_begin(0), state.end()));
  }

  /// The softmax over the slots.
  Numbers weights(int64_t t, int64_t head_out, const Numbers& state) const {
    const HeadRows q = rows(args_.inputs.q, head_out);
    Numbers p(static_cast<size_t>(num_slots_), 0.0);
    for (int64_t m = 0; m < num_slots_; ++m) {
      for (int64_t i = 0; i < p_.head_dim; ++i) {
        p[static_cast<size_t>(m)] += p_.scale * q.load(t, i) * key_slot(state, m)[i];
      }
    }
    const double top = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& x : p) {
      x = std::exp(x - top);
      sum += x;
    }
    for (double& x : p) x /= sum;
    return p;
  }

  SharedRows* shared_;
  int64_t num_slots_;
  Numbers k_, v_, s_, g_;
  Numbers dv_, ds_, dg_;
};

}  // namespace

LinearImplementation slots_reference(LinearPass pass) {
  return recurrent_reference<SlotsHead>(pass);
}

}  // namespace flashtile
