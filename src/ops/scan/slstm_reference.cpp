// SPDX-License-Identifier: Apache-2.0
//
// What slstm means. For a head with the hidden state h' of the row before, and R of (4, dim, dim):
//
//   i~ = i + R_i h', f~ = f + R_f h', z~ = z + R_z h', o~ = o + R_o h'
//   m = max(logsigmoid(f~) + m', i~), e = exp(i~ - m), k = exp(logsigmoid(f~) + m' - m)
//   c = k c' + e tanh(z~), n = k n' + e, h = sigmoid(o~) c / n
//
// and backwards, with m held constant, which h does not depend on:
//
//   do~ = dh h (1 - sigmoid(o~)), dc += dh sigmoid(o~) / n, dn -= dh h / n
//   di~ = e (dc tanh(z~) + dn), dz~ = dc e (1 - tanh(z~)^2), df~ = k (dc c' + dn n') sigmoid(-f~)
//   dR = d~ h'', dh' = sum of R' d~, dc' = k dc, dn' = k dn
#include <limits>

#include "ops/linear/activations.hpp"
#include "ops/linear/recurrent_head.hpp"
#include "ops/scan/scan.hpp"

namespace flashtile {
namespace {

constexpr int64_t kNumGates = 4;  // i, f, z, o

/// Its state is c, n, m, h, one behind the other.
class SlstmHead : public RecurrentHead<SlstmHead> {
 public:
  SlstmHead(const LinearProblem& problem, const LinearArgs& args, const LinearSequence& sequence,
            int64_t head, SharedRows*, ParameterSums* sums)
      : RecurrentHead(problem, args, sequence, head), sums_(sums), dim_(problem.head_dim) {
    const LinearTensors& in = args.inputs;
    const LinearTensors& out = args.gradients;
    for (const TensorView* tensor : {&in.i, &in.f, &in.z, &in.o}) {
      gates_.push_back(rows(*tensor, head));
    }
    for (const TensorView* tensor : {&out.i, &out.f, &out.z, &out.o}) {
      dgates_.push_back(rows(*tensor, head));
    }
    for (int64_t n = 0; n < kNumGates * dim_ * dim_; ++n) {
      weight_.push_back(load_parameter(in.weight, head, n));
    }
  }

  Numbers initial_state() const {
    const LinearStates& states = args_.initial_states;
    Numbers max(static_cast<size_t>(dim_), -std::numeric_limits<double>::infinity());
    if (states.max) max = load(states.max, dim_);
    return joined(load(states.state, dim_), load(states.norm, dim_), max,
                  load(states.hidden, dim_));
  }
  Numbers final_gradient() const {
    const LinearStates& states = args_.dfinal_states;
    return joined(load(states.state, dim_), load(states.norm, dim_),
                  Numbers(static_cast<size_t>(dim_), 0.0), load(states.hidden, dim_));
  }

  void step(int64_t t, Numbers& state) const {
    const Numbers before = state;
    for (int64_t j = 0; j < dim_; ++j) {
      const Cell cell(*this, t, j, before);
      c(state, j) = cell.c;
      n(state, j) = cell.n;
      m(state, j) = cell.m;
      h(state, j) = cell.output * cell.c / cell.n;
    }
  }

  void write_output(int64_t t, const Numbers& state) const {
    for (int64_t j = 0; j < dim_; ++j) rows(args_.out, head_).store(t, j, h(state, j));
  }

  void store_final(const Numbers& state) const {
    store_parts(args_.final_states, state);
    store(args_.final_states.max, part(state, 2));
  }

  void add_output_gradient(int64_t t, const Numbers&, Numbers& dstate) const {
    for (int64_t j = 0; j < dim_; ++j) h(dstate, j) += rows(args_.dout, head_).load(t, j);
  }

  void add_step_gradient(int64_t t, const Numbers& before, Numbers& dstate) {
    Numbers dhidden(static_cast<size_t>(dim_), 0.0);
    for (int64_t j = 0; j < dim_; ++j) {
      const Cell cell(*this, t, j, before);
      const double hidden = cell.output * cell.c / cell.n;
      const double dh = h(dstate, j);
      const double dc = c(dstate, j) + dh * cell.output / cell.n;
      const double dn = n(dstate, j) - dh * hidden / cell.n;
      const double dkept = dc * c(before, j) + dn * n(before, j);
      const double gradients[kNumGates] = {
          (dc * cell.input + dn) * cell.added,
          masked_product(cell.kept, dkept) * sigmoid(-cell.forget),
          dc * cell.added * (1 - cell.input * cell.input),
          dh * hidden * (1 - cell.output),
      };
      for (int64_t gate = 0; gate < kNumGates; ++gate) {
        const double gradient = gradients[gate];
        dgates_[static_cast<size_t>(gate)].store(t, j, gradient);
        for (int64_t i = 0; i < dim_; ++i) {
          const int64_t at = weight_index(gate, j, i);
          sums_->add(args_.gradients.weight, sequence_.batch_idx, head_, at,
                     gradient * h(before, i));
          dhidden[static_cast<size_t>(i)] += weight_[static_cast<size_t>(at)] * gradient;
        }
      }
      c(dstate, j) = masked_product(cell.kept, dc);
      n(dstate, j) = masked_product(cell.kept, dn);
    }
    for (int64_t j = 0; j < dim_; ++j) h(dstate, j) = dhidden[static_cast<size_t>(j)];
  }

  void store_gradients(const Numbers& dstate) const { store_parts(args_.dinitial_states, dstate); }

 private:
  // Parts of a state.
  double& c(Numbers& state, int64_t j) const { return state[static_cast<size_t>(j)]; }
  double c(const Numbers& state, int64_t j) const { return state[static_cast<size_t>(j)]; }
  double& n(Numbers& state, int64_t j) const { return state[static_cast<size_t>(dim_ + j)]; }
  double n(const Numbers& state, int64_t j) const { return state[static_cast<size_t>(dim_ + j)]; }
  double& m(Numbers& state, int64_t j) const { return state[static_cast<size_t>(2 * dim_ + j)]; }
  double m(const Numbers& state, int64_t j) const {
    return state[static_cast<size_t>(2 * dim_ + j)];
  }
  double& h(Numbers& state, int64_t j) const { return state[static_cast<size_t>(3 * dim_ + j)]; }
  double h(const Numbers& state, int64_t j) const {
    return state[static_cast<size_t>(3 * dim_ + j)];
  }

  static Numbers joined(Numbers first, const Numbers& second, const Numbers& third,
                        const Numbers& fourth) {
    for (const Numbers* next : {&second, &third, &fourth}) {
      first.insert(first.end(), next->begin(), next->end());
    }
    return first;
  }
  Numbers part(const Numbers& state, int64_t index) const {
    return {state.begin() + index * dim_, state.begin() + (index + 1) * dim_};
  }
  void store_parts(const LinearStates& states, const Numbers& state) const {
    store(states.state, part(state, 0));
    store(states.norm, part(state, 1));
    store(states.hidden, part(state, 3));
  }

  int64_t weight_index(int64_t gate, int64_t row, int64_t column) const {
    return (gate * dim_ + row) * dim_ + column;
  }

  /// One element of a head, behind row t.
  struct Cell {
    Cell(const SlstmHead& head, int64_t t, int64_t j, const Numbers& before) {
      const auto gate = [&](int64_t index) {
        double sum = head.gates_[static_cast<size_t>(index)].load(t, j);
        for (int64_t i = 0; i < head.dim_; ++i) {
          sum +=
              head.weight_[static_cast<size_t>(head.weight_index(index, j, i))] * head.h(before, i);
        }
        return sum;
      };
      const double added_exponent = gate(0);
      forget = gate(1);
      input = std::tanh(gate(2));
      output = sigmoid(gate(3));
      const double kept_exponent = log_sigmoid(forget) + head.m(before, j);
      m = std::fmax(kept_exponent, added_exponent);
      added = std::exp(added_exponent - m);
      kept = std::exp(kept_exponent - m);
      c = masked_product(kept, head.c(before, j)) + added * input;
      n = masked_product(kept, head.n(before, j)) + added;
    }
    double forget, input, output;  ///< f~, tanh(z~), sigmoid(o~)
    double m, kept, added;
    double c, n;
  };

  ParameterSums* sums_;
  int64_t dim_;
  std::vector<HeadRows> gates_, dgates_;
  Numbers weight_;
};

}  // namespace

LinearImplementation slstm_reference(LinearPass pass) {
  return recurrent_reference<SlstmHead>(pass);
}

}  // namespace flashtile
