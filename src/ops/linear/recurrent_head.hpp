// SPDX-License-Identifier: Apache-2.0
//
// What the references of the families share: a state that goes from row to row, in double.
#pragma once

#include "ops/linear/implementation.hpp"
#include "ops/linear/parameter_sums.hpp"
#include "ops/linear/sequences.hpp"
#include "ops/linear/state_history.hpp"

namespace flashtile {

using Numbers = std::vector<double>;

/// Row `row` of a matrix with `dim` columns.
inline double* row_of(Numbers& numbers, int64_t row, int64_t dim) {
  return numbers.data() + row * dim;
}
inline const double* row_of(const Numbers& numbers, int64_t row, int64_t dim) {
  return numbers.data() + row * dim;
}

Numbers load_rows(const HeadRows& rows, int64_t length, int64_t dim);
void store_rows(const HeadRows& rows, const Numbers& numbers, int64_t length, int64_t dim);

/// factor x, and 0 where factor is 0 whatever x is: what a reset leaves.
inline double masked_product(double factor, double x) { return factor == 0 ? 0 : factor * x; }

/// Divides a row by sqrt(sum of squares + 1e-6), and takes a gradient back through that.
void l2_normalize(double* row, int64_t dim);
void l2_normalize_gradient(const double* raw_row, double* gradient, int64_t dim);

/// Gradients of q and k of one sequence, summed over the heads that share them.
struct SharedRows {
  SharedRows(const LinearProblem& problem, const LinearSequence& sequence);
  /// Those of the rows before `qk_l2norm`, where that is on.
  void store(const LinearProblem& problem, const LinearArgs& args, const LinearSequence& sequence);

  std::vector<Numbers> dq;  ///< (head of q)(row, head_dim)
  std::vector<Numbers> dk;
};

/// One state head of one sequence. `Derived` has these members:
///
/// - `Numbers initial_state() const`;
/// - `Numbers final_gradient() const`: the gradient of the state behind the last row;
/// - `void step(t, Numbers& state) const`: takes the state over row t;
/// - `void write_output(t, const Numbers& state) const`;
/// - `void store_final(const Numbers& state) const`;
/// - `void add_output_gradient(t, const Numbers& state, Numbers& dstate)`;
/// - `void add_step_gradient(t, const Numbers& before, Numbers& dstate)`: `dstate`, the gradient of
///   the state behind row t, becomes that of the state before it;
/// - `void store_gradients(const Numbers& dstate) const`: with that before the first row.
///
/// Outputs read the state behind their row, or before it where the op says so.
template <class Derived>
class RecurrentHead {
 public:
  void run_forward() const {
    Numbers state = self().initial_state();
    for (int64_t t = 0; t < sequence_.length; ++t) {
      if (p_.op->reads_before) self().write_output(t, state);
      self().step(t, state);
      if (!p_.op->reads_before) self().write_output(t, state);
    }
    self().store_final(state);
  }

  void run_backward() {
    const auto step = [this](int64_t t, Numbers& state) { self().step(t, state); };
    StateHistory history(sequence_.length, self().initial_state(), step);
    Numbers dstate = self().final_gradient();
    Numbers state = history.last();
    for (int64_t t = sequence_.length - 1; t >= 0; --t) {
      if (!p_.op->reads_before) self().add_output_gradient(t, state, dstate);
      state = history.before(t);
      self().add_step_gradient(t, state, dstate);
      if (p_.op->reads_before) self().add_output_gradient(t, state, dstate);
    }
    self().store_gradients(dstate);
  }

 protected:
  RecurrentHead(const LinearProblem& problem, const LinearArgs& args,
                const LinearSequence& sequence, int64_t head)
      : p_(problem), args_(args), sequence_(sequence), head_(head) {}

  HeadRows rows(const TensorView& tensor, int64_t head) const {
    return timed_rows(p_, tensor, sequence_, head);
  }
  /// All rows of an input that each state head has its own of.
  Numbers own_rows(const TensorView& tensor, int64_t dim) const {
    return load_rows(rows(tensor, head_), sequence_.length, dim);
  }
  void store_own_rows(const TensorView& tensor, const Numbers& numbers, int64_t dim) const {
    store_rows(rows(tensor, head_), numbers, sequence_.length, dim);
  }

  /// First output head that reads this state; the others follow it.
  int64_t first_output() const { return head_ * p_.heads_a_state(); }
  int64_t end_output() const { return first_output() + p_.heads_a_state(); }

  Numbers load(const TensorView& state, int64_t size) const {
    return load_state(state, sequence_.state_idx, head_, size);
  }
  void store(const TensorView& state, const Numbers& numbers) const {
    store_state(state, sequence_.state_idx, head_, numbers);
  }

  const LinearProblem& p_;
  const LinearArgs& args_;
  const LinearSequence& sequence_;
  const int64_t head_;

 private:
  const Derived& self() const { return static_cast<const Derived&>(*this); }
  Derived& self() { return static_cast<Derived&>(*this); }
};

template <class Head>
void launch_recurrent_forward(const LinearProblem& problem, const LinearPlan&,
                              const LinearArgs& args, const Context&) {
  for (const LinearSequence& sequence : linear_sequences(problem, args)) {
    for (int64_t h = 0; h < problem.num_state_heads; ++h) {
      Head(problem, args, sequence, h, nullptr, nullptr).run_forward();
    }
  }
}

template <class Head>
void launch_recurrent_backward(const LinearProblem& problem, const LinearPlan&,
                               const LinearArgs& args, const Context&) {
  ParameterSums sums(problem, args);
  for (const LinearSequence& sequence : linear_sequences(problem, args)) {
    SharedRows shared(problem, sequence);
    for (int64_t h = 0; h < problem.num_state_heads; ++h) {
      Head(problem, args, sequence, h, &shared, &sums).run_backward();
    }
    shared.store(problem, args, sequence);
  }
  sums.store();
}

/// What references refuse, and their plan.
std::string refuse_as_reference(const LinearProblem& problem);
LinearPlan plan_as_reference(const LinearProblem& problem);

template <class Head>
LinearImplementation recurrent_reference(LinearPass pass) {
  return {"reference", refuse_as_reference, plan_as_reference,
          pass == LinearPass::kBackward ? launch_recurrent_backward<Head>
                                        : launch_recurrent_forward<Head>};
}

}  // namespace flashtile
