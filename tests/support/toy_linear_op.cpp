// SPDX-License-Identifier: Apache-2.0
//
// What leaky_sum means: S_t = exp(g_t) S_{t-1} + x_t, o_t = scale S_t + D x_t; backwards dS +=
// scale do, dx = dS + D do, dD = sum of do x, dg = exp(g) S_{t-1} dS, then dS is multiplied by
// exp(g).
#include "support/toy_linear_op.hpp"

#include "ops/linear/inputs.hpp"
#include "ops/linear/options.hpp"
#include "ops/linear/recurrent_head.hpp"
#include "ops/linear/table.hpp"

namespace flashtile::toy {
namespace {

using T = LinearTensors;
using S = LinearStates;

// ---- The entry: src/ops/<family>/ops.cpp -------------------------------------------------------

constexpr std::string_view kShape = "num_heads head_dim";
constexpr std::array kInputs = {
    linear_input<&T::v>("x", kShape, kLinearFloats, "what is added"),
    linear_input<&T::g>("g", "num_heads", "f32 =x f64", "log decay").filled(Fill::kLogDecay),
    linear_input<&T::D>("D", "num_heads", kParameterDtypes, "skip").optional().untimed(),
};
constexpr std::array kStates = {linear_state<&S::state>("state", kShape, "sum")};
constexpr std::array kOptions = {kUnitScaleOption};
constexpr LinearOp kLeakySum = {
    .name = "leaky_sum",
    .doc = "a sum of each element that leaks",
    .reference = leaky_sum_reference,
    .gate = LinearGate::kLogDecay,
    .has_unit_scale = true,
    .inputs = kInputs,
    .states = kStates,
    .out_shape = kShape,
    .options = kOptions,
};

// ---- The recurrence: src/ops/<family>/<op>_reference.cpp ---------------------------------------

class LeakySumHead : public RecurrentHead<LeakySumHead> {
 public:
  LeakySumHead(const LinearProblem& problem, const LinearArgs& args, const LinearSequence& sequence,
               int64_t head, SharedRows*, ParameterSums* sums)
      : RecurrentHead(problem, args, sequence, head),
        x_(rows(args.inputs.v, head)),
        g_(rows(args.inputs.g, head)),
        skip_(args.inputs.D ? load_parameter(args.inputs.D, head) : 0),
        sums_(sums) {}

  Numbers initial_state() const { return load(args_.initial_states.state, p_.head_dim); }
  Numbers final_gradient() const { return load(args_.dfinal_states.state, p_.head_dim); }

  void step(int64_t t, Numbers& state) const {
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      double& s = state[static_cast<size_t>(i)];
      s = masked_product(std::exp(g_.load(t)), s) + x_.load(t, i);
    }
  }
  void write_output(int64_t t, const Numbers& state) const {
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      rows(args_.out, head_)
          .store(t, i, p_.scale * state[static_cast<size_t>(i)] + skip_ * x_.load(t, i));
    }
  }
  void store_final(const Numbers& state) const { store(args_.final_states.state, state); }

  void add_output_gradient(int64_t t, const Numbers&, Numbers& dstate) {
    const HeadRows dout = rows(args_.dout, head_);
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      dstate[static_cast<size_t>(i)] += p_.scale * dout.load(t, i);
      sums_->add(args_.gradients.D, sequence_.batch_idx, head_, 0, dout.load(t, i) * x_.load(t, i));
    }
  }
  void add_step_gradient(int64_t t, const Numbers& before, Numbers& dstate) const {
    const HeadRows dout = rows(args_.dout, head_);
    double dg = 0;
    for (int64_t i = 0; i < p_.head_dim; ++i) {
      double& ds = dstate[static_cast<size_t>(i)];
      rows(args_.gradients.v, head_).store(t, i, ds + skip_ * dout.load(t, i));
      ds = masked_product(std::exp(g_.load(t)), ds);
      dg += masked_product(ds, before[static_cast<size_t>(i)]);
    }
    rows(args_.gradients.g, head_).store(t, 0, dg);
  }
  void store_gradients(const Numbers& dstate) const { store(args_.dinitial_states.state, dstate); }

 private:
  HeadRows x_, g_;
  double skip_;
  ParameterSums* sums_;
};

}  // namespace

LinearImplementation leaky_sum_reference(LinearPass pass) {
  return recurrent_reference<LeakySumHead>(pass);
}

// ---- The public functions, and the tables: src/ops/<family>/ops.cpp ----------------------------

void leaky_sum_fwd(const LinearArgs& args, const Context& context) {
  call_linear<kLeakySum, LinearPass::kForward>(args, context);
}
void leaky_sum_bwd(const LinearArgs& args, const Context& context) {
  call_linear<kLeakySum, LinearPass::kBackward>(args, context);
}
void leaky_sum_step(const LinearArgs& args, const Context& context) {
  call_linear<kLeakySum, LinearPass::kStep>(args, context);
}

const std::vector<const OpSpec*>& leaky_sum_specs() {
  static const std::vector<const OpSpec*> specs = [] {
    std::vector<const OpSpec*> made = linear_specs_of<kLeakySum>();
    for (const OpSpec* spec : made) register_op(*spec);
    return made;
  }();
  return specs;
}

}  // namespace flashtile::toy
