// SPDX-License-Identifier: Apache-2.0
//
// What the vector-decay family means, in double and one row after the other:
//
//   S_t = Diag(exp(g_t)) S_{t-1} + k_t v_t'
//   o_t = S_t' (scale q_t), or (S_{t-1} + Diag(u) k_t v_t')' (scale q_t)
//
// and backwards, with dS the gradient of S_t:
//
//   dq = scale S do, dS += scale q do'; with a bonus S is S_{t-1}, and with c = v.do also
//   dq += scale u k c, dk += scale u q c, du += scale q k c, dv += scale (sum of u k q) do
//   dk += dS v, dv += dS' k, dg_i = exp(g_i) (row i of S_{t-1}).(row i of dS), then row i of dS is
//   multiplied by exp(g_i)
#include "ops/linear/recurrent_head.hpp"
#include "ops/vector_decay/vector_decay.hpp"

namespace flashtile {
namespace {

class VectorDecayHead : public RecurrentHead<VectorDecayHead> {
 public:
  VectorDecayHead(const LinearProblem& problem, const LinearArgs& args,
                  const LinearSequence& sequence, int64_t head, SharedRows* shared,
                  ParameterSums* sums)
      : RecurrentHead(problem, args, sequence, head),
        shared_(shared),
        sums_(sums),
        size_(problem.head_dim * problem.head_dim_v),
        k_(load_rows(rows(args.inputs.k, problem.key_head_of(head)), sequence.length,
                     problem.head_dim)),
        v_(own_rows(args.inputs.v, problem.head_dim_v)),
        g_(own_rows(args.inputs.g, problem.head_dim)),
        dv_(shared == nullptr ? 0 : v_.size(), 0.0),
        dg_(shared == nullptr ? 0 : g_.size(), 0.0) {}

  Numbers initial_state() const { return load(args_.initial_states.state, size_); }
  Numbers final_gradient() const { return load(args_.dfinal_states.state, size_); }

  void step(int64_t t, Numbers& state) const {
    const double* k = row_of(k_, t, p_.head_dim);
    const double* v = row_of(v_, t, p_.head_dim_v);
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      const double decay = std::exp(row_of(g_, t, p_.head_dim)[i]);
      double* row = row_of(state, i, p_.head_dim_v);
      for (int64_t j = 0; j < p_.head_dim_v; ++j)
        row[j] = masked_product(decay, row[j]) + k[i] * v[j];
    }
  }

  void write_output(int64_t t, const Numbers& state) const {
    const double* k = row_of(k_, t, p_.head_dim);
    const double* v = row_of(v_, t, p_.head_dim_v);
    for (int64_t head_out = first_output(); head_out < end_output(); ++head_out) {
      const HeadRows q = rows(args_.inputs.q, p_.query_head_of(head_out));
      const HeadRows out = rows(args_.out, head_out);
      for (int64_t j = 0; j < p_.head_dim_v; ++j) {
        double sum = 0;
        for (int64_t i = 0; i < p_.head_dim; ++i) {
          sum += p_.scale * q.load(t, i) *
                 (row_of(state, i, p_.head_dim_v)[j] + bonus(i) * k[i] * v[j]);
        }
        out.store(t, j, sum);
      }
    }
  }

  void store_final(const Numbers& state) const { store(args_.final_states.state, state); }

  void add_output_gradient(int64_t t, const Numbers& state, Numbers& dstate) {
    const double* k = row_of(k_, t, p_.head_dim);
    const double* v = row_of(v_, t, p_.head_dim_v);
    double* dv = row_of(dv_, t, p_.head_dim_v);
    for (int64_t head_out = first_output(); head_out < end_output(); ++head_out) {
      const HeadRows q = rows(args_.inputs.q, p_.query_head_of(head_out));
      const HeadRows dout = rows(args_.dout, head_out);
      double* dq = shared_row(shared_->dq, p_.query_head_of(head_out), t);
      double* dk = shared_row(shared_->dk, p_.key_head_of(head_), t);
      double c = 0;
      for (int64_t j = 0; j < p_.head_dim_v; ++j) c += v[j] * dout.load(t, j);
      for (int64_t i = 0; i < p_.head_dim; ++i) {
        const double qi = p_.scale * q.load(t, i);
        const double u = bonus(i);
        double sum = u * k[i] * c;
        for (int64_t j = 0; j < p_.head_dim_v; ++j) {
          sum += row_of(state, i, p_.head_dim_v)[j] * dout.load(t, j);
          row_of(dstate, i, p_.head_dim_v)[j] += qi * dout.load(t, j);
          dv[j] += u * k[i] * qi * dout.load(t, j);
        }
        dq[i] += p_.scale * sum;
        dk[i] += u * qi * c;
        sums_->add(args_.gradients.u_bonus, sequence_.batch_idx, head_, i, qi * k[i] * c);
      }
    }
  }

  void add_step_gradient(int64_t t, const Numbers& before, Numbers& dstate) {
    const double* k = row_of(k_, t, p_.head_dim);
    const double* v = row_of(v_, t, p_.head_dim_v);
    double* dk = shared_row(shared_->dk, p_.key_head_of(head_), t);
    double* dv = row_of(dv_, t, p_.head_dim_v);
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      const double decay = std::exp(row_of(g_, t, p_.head_dim)[i]);
      double* row = row_of(dstate, i, p_.head_dim_v);
      for (int64_t j = 0; j < p_.head_dim_v; ++j) {
        dk[i] += row[j] * v[j];
        dv[j] += row[j] * k[i];
        row[j] = masked_product(decay, row[j]);
        row_of(dg_, t, p_.head_dim)[i] +=
            masked_product(row[j], row_of(before, i, p_.head_dim_v)[j]);
      }
    }
  }

  void store_gradients(const Numbers& dstate) const {
    store_own_rows(args_.gradients.v, dv_, p_.head_dim_v);
    store_own_rows(args_.gradients.g, dg_, p_.head_dim);
    store(args_.dinitial_states.state, dstate);
  }

 private:
  double* shared_row(std::vector<Numbers>& heads, int64_t head, int64_t t) const {
    return row_of(heads[static_cast<size_t>(head)], t, p_.head_dim);
  }

  double bonus(int64_t i) const {
    return args_.inputs.u_bonus ? load_parameter(args_.inputs.u_bonus, head_, i) : 0;
  }

  SharedRows* shared_;
  ParameterSums* sums_;
  int64_t size_;
  Numbers k_, v_, g_;
  Numbers dv_, dg_;
};

}  // namespace

LinearImplementation vector_decay_reference(LinearPass pass) {
  return recurrent_reference<VectorDecayHead>(pass);
}

}  // namespace flashtile
