// SPDX-License-Identifier: Apache-2.0
//
// What the delta family means, in double and one row after the other, with R = Diag(exp(g_t))
// S_{t-1}, where g_t is a number for each key dimension, one for all of them, or 0:
//
//   delta     r = v - R' k, e = beta r, S_t = R + k e'
//   low rank  x = S_{t-1}' a, S_t = R + b x' + k v'
//   o_t = S_t' (scale q_t)
//
// and backwards, with dS the gradient of S_t, which dS += scale q do' makes complete:
//
//   dq = scale S do
//   delta     de = dS' k, dk = dS e, dbeta = de.r, dv = beta de, dk -= R dv, dR = dS - k dv'
//   low rank  dk = dS v, dv = dS' k, db = dS x, dx = dS' b, da = S_{t-1} dx, dR = dS
//   dg_i = (row i of R).(row i of dR); dS_{t-1} = Diag(exp(g)) dR, and for low rank + a dx'
#include <algorithm>

#include "ops/delta/delta.hpp"
#include "ops/linear/recurrent_head.hpp"

namespace flashtile {
namespace {

class DeltaHead : public RecurrentHead<DeltaHead> {
 public:
  DeltaHead(const LinearProblem& problem, const LinearArgs& args, const LinearSequence& sequence,
            int64_t head, SharedRows* shared, ParameterSums*)
      : RecurrentHead(problem, args, sequence, head),
        shared_(shared),
        size_(problem.head_dim * problem.head_dim_v),
        is_low_rank_(problem.op->update == LinearUpdate::kLowRank),
        gates_a_row_(problem.op->gate == LinearGate::kVectorLogDecay ? problem.head_dim : 1),
        k_(shared_rows(args.inputs.k, problem.key_head_of(head))),
        v_(own_rows(args.inputs.v, problem.head_dim_v)),
        g_(own_rows(args.inputs.g, gates_a_row_)),
        beta_(own_rows(args.inputs.beta, 1)),
        a_(own_rows(args.inputs.a, problem.head_dim)),
        b_(own_rows(args.inputs.b, problem.head_dim)),
        dv_(v_.size(), 0.0),
        dg_(g_.size(), 0.0),
        dbeta_(beta_.size(), 0.0),
        da_(a_.size(), 0.0),
        db_(b_.size(), 0.0) {}

  Numbers initial_state() const { return load(args_.initial_states.state, size_); }
  Numbers final_gradient() const { return load(args_.dfinal_states.state, size_); }

  void step(int64_t t, Numbers& state) const {
    const double* k = row_of(k_, t, p_.head_dim);
    const double* v = row_of(v_, t, p_.head_dim_v);
    if (is_low_rank_) {
      const Numbers x = read(state, row_of(a_, t, p_.head_dim));
      decay(t, state);
      add_outer(row_of(b_, t, p_.head_dim), x.data(), state);
      add_outer(k, v, state);
    } else {
      decay(t, state);
      const Numbers e = correction(t, state).e;
      add_outer(k, e.data(), state);
    }
  }

  void write_output(int64_t t, const Numbers& state) const {
    for (int64_t head_out = first_output(); head_out < end_output(); ++head_out) {
      const Numbers out = read(state, load_q(t, head_out).data());
      for (int64_t j = 0; j < p_.head_dim_v; ++j) {
        rows(args_.out, head_out).store(t, j, p_.scale * out[static_cast<size_t>(j)]);
      }
    }
  }

  void store_final(const Numbers& state) const { store(args_.final_states.state, state); }

  void add_output_gradient(int64_t t, const Numbers& state, Numbers& dstate) {
    for (int64_t head_out = first_output(); head_out < end_output(); ++head_out) {
      Numbers dout = load_rows_at(args_.dout, head_out, t);
      for (double& x : dout) x *= p_.scale;
      add_product(state, dout.data(), shared_row(shared_->dq, p_.query_head_of(head_out), t));
      add_outer(load_q(t, head_out).data(), dout.data(), dstate);
    }
  }

  void add_step_gradient(int64_t t, const Numbers& before, Numbers& dstate) {
    Numbers decayed = before;
    decay(t, decayed);
    Numbers added(dstate.size(), 0.0);  // of S_{t-1}, past the decay
    if (is_low_rank_) {
      add_low_rank_gradient(t, before, dstate, added);
    } else {
      add_delta_gradient(t, decayed, dstate);
    }
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      double& dg = row_of(dg_, t, gates_a_row_)[gates_a_row_ == 1 ? 0 : i];
      for (int64_t j = 0; j < p_.head_dim_v; ++j) {
        dg += masked_product(row_of(decayed, i, p_.head_dim_v)[j],
                             row_of(dstate, i, p_.head_dim_v)[j]);
      }
    }
    decay(t, dstate);
    for (size_t n = 0; n < dstate.size(); ++n) dstate[n] += added[n];
  }

  void store_gradients(const Numbers& dstate) const {
    const LinearTensors& gradients = args_.gradients;
    store_own_rows(gradients.v, dv_, p_.head_dim_v);
    store_own_rows(gradients.g, dg_, gates_a_row_);
    store_own_rows(gradients.beta, dbeta_, 1);
    store_own_rows(gradients.a, da_, p_.head_dim);
    store_own_rows(gradients.b, db_, p_.head_dim);
    store(args_.dinitial_states.state, dstate);
  }

 private:
  double* shared_row(std::vector<Numbers>& heads, int64_t head, int64_t t) const {
    return row_of(heads[static_cast<size_t>(head)], t, p_.head_dim);
  }

  Numbers shared_rows(const TensorView& tensor, int64_t head) const {
    Numbers numbers = load_rows(rows(tensor, head), sequence_.length, p_.head_dim);
    for (int64_t t = 0; args_.qk_l2norm && t < sequence_.length; ++t) {
      l2_normalize(row_of(numbers, t, p_.head_dim), p_.head_dim);
    }
    return numbers;
  }

  Numbers load_rows_at(const TensorView& tensor, int64_t head, int64_t t) const {
    const HeadRows all = rows(tensor, head);
    Numbers row(static_cast<size_t>(p_.head_dim_v));
    for (size_t j = 0; j < row.size(); ++j) row[j] = all.load(t, static_cast<int64_t>(j));
    return row;
  }

  Numbers load_q(int64_t t, int64_t head_out) const {
    const HeadRows all = rows(args_.inputs.q, p_.query_head_of(head_out));
    Numbers row(static_cast<size_t>(p_.head_dim));
    for (size_t i = 0; i < row.size(); ++i) row[i] = all.load(t, static_cast<int64_t>(i));
    if (args_.qk_l2norm) l2_normalize(row.data(), p_.head_dim);
    return row;
  }

  void decay(int64_t t, Numbers& state) const {
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      const double factor = std::exp(row_of(g_, t, gates_a_row_)[gates_a_row_ == 1 ? 0 : i]);
      double* row = row_of(state, i, p_.head_dim_v);
      for (int64_t j = 0; j < p_.head_dim_v; ++j) row[j] = masked_product(factor, row[j]);
    }
  }

  /// state' x, over key dimensions.
  Numbers read(const Numbers& state, const double* x) const {
    Numbers result(static_cast<size_t>(p_.head_dim_v), 0.0);
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      const double* row = row_of(state, i, p_.head_dim_v);
      for (int64_t j = 0; j < p_.head_dim_v; ++j) result[static_cast<size_t>(j)] += x[i] * row[j];
    }
    return result;
  }

  /// target += state y, over value dimensions.
  void add_product(const Numbers& state, const double* y, double* target) const {
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      const double* row = row_of(state, i, p_.head_dim_v);
      for (int64_t j = 0; j < p_.head_dim_v; ++j) target[i] += row[j] * y[j];
    }
  }

  /// state += x y'.
  void add_outer(const double* x, const double* y, Numbers& state) const {
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      double* row = row_of(state, i, p_.head_dim_v);
      for (int64_t j = 0; j < p_.head_dim_v; ++j) row[j] += x[i] * y[j];
    }
  }

  struct Correction {
    Numbers r;  ///< v - R' k
    Numbers e;  ///< beta r
  };

  Correction correction(int64_t t, const Numbers& decayed) const {
    Correction result{read(decayed, row_of(k_, t, p_.head_dim)), {}};
    for (int64_t j = 0; j < p_.head_dim_v; ++j) {
      double& r = result.r[static_cast<size_t>(j)];
      r = row_of(v_, t, p_.head_dim_v)[j] - r;
      result.e.push_back(beta_[static_cast<size_t>(t)] * r);
    }
    return result;
  }

  void add_delta_gradient(int64_t t, const Numbers& decayed, Numbers& dstate) {
    const double* k = row_of(k_, t, p_.head_dim);
    double* dk = shared_row(shared_->dk, p_.key_head_of(head_), t);
    const auto n = static_cast<size_t>(t);
    const Correction forward = correction(t, decayed);
    add_product(dstate, forward.e.data(), dk);
    const Numbers de = read(dstate, k);
    Numbers minus_dv(de.size());
    for (size_t j = 0; j < de.size(); ++j) {
      dbeta_[n] += de[j] * forward.r[j];
      row_of(dv_, t, p_.head_dim_v)[j] = beta_[n] * de[j];
      minus_dv[j] = -beta_[n] * de[j];
    }
    add_product(decayed, minus_dv.data(), dk);
    add_outer(k, minus_dv.data(), dstate);
  }

  void add_low_rank_gradient(int64_t t, const Numbers& before, const Numbers& dstate,
                             Numbers& added) {
    const double* a = row_of(a_, t, p_.head_dim);
    const Numbers x = read(before, a);
    const Numbers dx = read(dstate, row_of(b_, t, p_.head_dim));
    const Numbers dv = read(dstate, row_of(k_, t, p_.head_dim));
    add_product(dstate, row_of(v_, t, p_.head_dim_v),
                shared_row(shared_->dk, p_.key_head_of(head_), t));
    std::copy(dv.begin(), dv.end(), row_of(dv_, t, p_.head_dim_v));
    add_product(dstate, x.data(), row_of(db_, t, p_.head_dim));
    add_product(before, dx.data(), row_of(da_, t, p_.head_dim));
    add_outer(a, dx.data(), added);
  }

  SharedRows* shared_;
  int64_t size_;
  bool is_low_rank_;
  int64_t gates_a_row_;
  Numbers k_, v_, g_, beta_, a_, b_;
  Numbers dv_, dg_, dbeta_, da_, db_;
};

}  // namespace

LinearImplementation delta_reference(LinearPass pass) {
  return recurrent_reference<DeltaHead>(pass);
}

}  // namespace flashtile
