// SPDX-License-Identifier: Apache-2.0
//
// Gradients of every differentiable input of every op of linear attention against central
// differences of its forward, all in double. The loss is the sum of each result times its incoming
// gradient.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "op_runs.hpp"
#include "support/linear_problems.hpp"
#include "support/tensor.hpp"

namespace flashtile::test {
namespace {

constexpr double kStep = 0x1p-12;
constexpr double kTolerance = 1e-7;
// The running maximum of mlstm_exp and slstm is held constant in gradients. Outputs follow it by
// the 1e-6 that is added to the divisor; stored states follow it in full, so their gradients are
// left out.
constexpr double kHeldMaxTolerance = 1e-5;
constexpr int64_t kMaxElements = 24;

/// A backward call with the forward call of the same inputs.
class Losses {
 public:
  Losses(const OpCall& backward, const std::string& forward_text)
      : forward_(linear_call(forward_text, 7)), backward_(&backward) {
    for (const std::string& name : forward_.call.tensor_names()) {
      const bool is_input = forward_.call.spec().find_tensor(name)->is_input();
      if (is_input) forward_.call.set_tensor(name, backward.tensor(name));
    }
  }

  double loss() const {
    forward_.call.run({});
    double sum = 0;
    for (const std::string& name : forward_.call.tensor_names()) {
      if (!forward_.call.writes(name)) continue;
      const std::string gradient = "d" + name;
      if (backward_->spec().find_tensor(gradient) == nullptr || !backward_->tensor(gradient))
        continue;
      const std::vector<double> values = cli::to_numbers(forward_.call.tensor(name));
      const std::vector<double> weights = cli::to_numbers(backward_->tensor(gradient));
      for (size_t i = 0; i < values.size(); ++i) sum += values[i] * weights[i];
    }
    return sum;
  }

  double derivative(std::vector<double>& values, size_t n, const TensorView& tensor) const {
    const double at = values[n];
    const auto loss_at = [&](double steps) {
      values[n] = at + steps * kStep;
      cli::from_numbers(values, tensor);
      return loss();
    };
    const double difference = loss_at(-2) - 8 * loss_at(-1) + 8 * loss_at(1) - loss_at(2);
    values[n] = at;
    cli::from_numbers(values, tensor);
    return difference / (12 * kStep);
  }

 private:
  cli::OwnedCall forward_;
  const OpCall* backward_;
};

void gradients_match_finite_differences(const LinearCase& one) {
  const std::string lengths = "cu_seqlens={0,4,4,5}";
  const bool holds_max = one.rest.find(":initial_max") != std::string::npos;
  cli::OwnedCall owned = linear_call(one.backward(lengths) + ":f64", 7);
  OpCall& call = owned.call;
  if (holds_max) {
    for (const char* name : {"dfinal_state", "dfinal_norm"}) call.set_tensor(name, {});
  }
  const Losses losses(call, one.forward(lengths) + ":f64");
  call.run({});
  int num_gradients = 0;
  for (const std::string& name : call.tensor_names()) {
    const TensorSpec& row = *call.spec().find_tensor(name);
    if (row.gradient_of.empty()) continue;
    ++num_gradients;
    const TensorView input = call.tensor(row.gradient_of);
    const std::vector<double> gradient = cli::to_numbers(call.tensor(name));
    std::vector<double> values = cli::to_numbers(input);
    double size = 1;
    for (const double x : gradient) size = std::max(size, std::abs(x));
    const size_t stride = std::max<size_t>(1, values.size() / kMaxElements);
    double largest = 0;
    for (size_t n = 0; n < values.size(); n += stride) {
      largest = std::max(largest, std::abs(gradient[n]));
      EXPECT_NEAR(gradient[n], losses.derivative(values, n, input),
                  (holds_max ? kHeldMaxTolerance : kTolerance) * size)
          << name << " element " << n;
    }
    EXPECT_GT(largest, 1e-5) << name << " is 0 everywhere";
  }
  EXPECT_GE(num_gradients, 1);
}

TEST(LinearGradients, MatchFiniteDifferences) {
  for_each_linear_case(gradients_match_finite_differences);
}

TEST(LinearGradients, GatesWithoutARateMatchToo) {
  gradients_match_finite_differences({"log_decay_gate", ":hq2:d3:bias:divisor=16"});
}

TEST(LinearGradients, FeatureMapsMatchToo) {
  for (const char* map : {"relu", "relu2", "softmax"}) {
    SCOPED_TRACE(map);
    gradients_match_finite_differences({"feature_map", std::string(":hq2:d3:feature_map=") + map});
  }
}

}  // namespace
}  // namespace flashtile::test
