// SPDX-License-Identifier: Apache-2.0
#include "ops/scalar_decay/gates.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/linear/activations.hpp"
#include "ops/linear/step_size.hpp"

namespace flashtile {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The log decay of heads that do not look at their input.
double constant_decay(const LinearProblem& problem, const LinearArgs& args, int64_t head) {
  const auto h = static_cast<double>(head);
  switch (problem.op->gate) {
    case LinearGate::kRetention:
      return std::log1p(-std::exp2(-5 - h));
    case LinearGate::kLightning:
      return -8.0 / static_cast<double>(problem.num_state_heads) *
             (1 - static_cast<double>(args.layer) / static_cast<double>(args.layers)) * h;
    case LinearGate::kLogDecay:
      return args.inputs.g_gamma ? load_parameter(args.inputs.g_gamma, head) : 0;
    default:
      return 0;
  }
}

void exponential_gates(const LinearArgs& args, const HeadRows& i, const HeadRows& f,
                       const LinearSequence& sequence, int64_t head, ScalarGates& gates) {
  double m = 0;
  load_state(args.initial_states.max, sequence.state_idx, head, std::span(&m, 1));
  for (int64_t t = 0; t < sequence.length; ++t) {
    const double kept = log_sigmoid(f.load(t)) + m;
    const double added = i.load(t);
    m = std::max(kept, added);
    // Nothing has come in yet: there is no maximum to be relative to, and nothing to be kept.
    const bool is_empty = m == -kInfinity;
    gates.log_decay.push_back(is_empty ? -kInfinity : kept - m);
    gates.weight.push_back(is_empty ? 0 : std::exp(added - m));
    gates.floor.push_back(std::exp(-m));
  }
  gates.last_max = m;
}

}  // namespace

bool has_input_weight(const LinearOp& op) {
  return op.gate == LinearGate::kStep || op.gate == LinearGate::kSigmoid ||
         op.gate == LinearGate::kExponential;
}

ScalarGates scalar_gates(const LinearProblem& problem, const LinearArgs& args,
                         const LinearSequence& sequence, int64_t head) {
  const LinearTensors& in = args.inputs;
  const auto rows = [&](const TensorView& tensor) {
    return timed_rows(problem, tensor, sequence, head);
  };
  ScalarGates gates;
  if (problem.op->gate == LinearGate::kExponential) {
    exponential_gates(args, rows(in.i), rows(in.f), sequence, head, gates);
    return gates;
  }
  const double constant = constant_decay(problem, args, head);
  const HeadRows g = rows(in.g), dt = rows(in.dt), i = rows(in.i), f = rows(in.f);
  for (int64_t t = 0; t < sequence.length; ++t) {
    double log_decay = constant;
    double weight = 1;
    switch (problem.op->gate) {
      case LinearGate::kLogDecay:
        log_decay += g.load(t);
        break;
      case LinearGate::kStep:
        weight = step_size(args, dt.load(t), head).value;
        log_decay = weight * load_parameter(in.A, head);
        break;
      case LinearGate::kSigmoid:
        weight = sigmoid(i.load(t));
        log_decay = log_sigmoid(f.load(t));
        break;
      default:
        break;
    }
    gates.log_decay.push_back(log_decay);
    gates.weight.push_back(weight);
  }
  return gates;
}

void store_gate_gradients(const LinearProblem& problem, const LinearArgs& args,
                          const LinearSequence& sequence, int64_t head, const ScalarGates& gates,
                          std::span<const double> dlog_decay, std::span<const double> dweight,
                          ParameterSums& sums) {
  const auto rows = [&](const TensorView& tensor) {
    return timed_rows(problem, tensor, sequence, head);
  };
  const LinearTensors& in = args.inputs;
  const LinearTensors& out = args.gradients;
  const HeadRows dt = rows(in.dt), i = rows(in.i), f = rows(in.f);
  const HeadRows dg = rows(out.g), ddt = rows(out.dt), di = rows(out.i), df = rows(out.f);
  for (int64_t t = 0; t < sequence.length; ++t) {
    const auto n = static_cast<size_t>(t);
    switch (problem.op->gate) {
      case LinearGate::kLogDecay:
        dg.store(t, 0, dlog_decay[n]);
        break;
      case LinearGate::kStep: {
        const StepSize step = step_size(args, dt.load(t), head);
        const double A = load_parameter(in.A, head);
        const double dstep = (dweight[n] + dlog_decay[n] * A) * step.slope;
        ddt.store(t, 0, dstep);
        sums.add(out.A, sequence.batch_idx, head, 0, dlog_decay[n] * step.value);
        sums.add(out.dt_bias, sequence.batch_idx, head, 0, dstep);
        break;
      }
      case LinearGate::kSigmoid:
        di.store(t, 0, dweight[n] * gates.weight[n] * sigmoid(-i.load(t)));
        df.store(t, 0, dlog_decay[n] * sigmoid(-f.load(t)));
        break;
      case LinearGate::kExponential:
        di.store(t, 0, dweight[n] * gates.weight[n]);
        df.store(t, 0, dlog_decay[n] * sigmoid(-f.load(t)));
        break;
      default:
        break;
    }
  }
}

}  // namespace flashtile
