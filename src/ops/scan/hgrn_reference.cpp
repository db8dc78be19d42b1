// SPDX-License-Identifier: Apache-2.0
//
// What hgrn means: S_t = exp(g_t) S_{t-1} + x_t, o_t = S_t; backwards dS += do, dx = dS,
// dg = exp(g) S_{t-1} dS, then dS is multiplied by exp(g).
#include "ops/linear/recurrent_head.hpp"
#include "ops/scan/scan.hpp"

namespace flashtile {
namespace {

/// A channel is a head.
class HgrnHead : public RecurrentHead<HgrnHead> {
 public:
  HgrnHead(const LinearProblem& problem, const LinearArgs& args, const LinearSequence& sequence,
           int64_t head, SharedRows*, ParameterSums*)
      : RecurrentHead(problem, args, sequence, head),
        x_(rows(args.inputs.v, head)),
        g_(rows(args.inputs.g, head)) {}

  Numbers initial_state() const { return load(args_.initial_states.state, 1); }
  Numbers final_gradient() const { return load(args_.dfinal_states.state, 1); }

  void step(int64_t t, Numbers& state) const {
    state[0] = masked_product(std::exp(g_.load(t)), state[0]) + x_.load(t);
  }
  void write_output(int64_t t, const Numbers& state) const {
    rows(args_.out, head_).store(t, 0, state[0]);
  }
  void store_final(const Numbers& state) const { store(args_.final_states.state, state); }

  void add_output_gradient(int64_t t, const Numbers&, Numbers& dstate) const {
    dstate[0] += rows(args_.dout, head_).load(t);
  }
  void add_step_gradient(int64_t t, const Numbers& before, Numbers& dstate) const {
    rows(args_.gradients.v, head_).store(t, 0, dstate[0]);
    dstate[0] = masked_product(std::exp(g_.load(t)), dstate[0]);
    rows(args_.gradients.g, head_).store(t, 0, masked_product(dstate[0], before[0]));
  }
  void store_gradients(const Numbers& dstate) const { store(args_.dinitial_states.state, dstate); }

 private:
  HeadRows x_, g_;
};

}  // namespace

LinearImplementation hgrn_reference(LinearPass pass) { return recurrent_reference<HgrnHead>(pass); }

}  // namespace flashtile
