// SPDX-License-Identifier: Apache-2.0
//
// Gradients of every differentiable input against central differences of the forward, all in
// double. The loss is sum(out dout) + sum(lse dlse).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "op_runs.hpp"
#include "random_problem.hpp"
#include "support/problem_cases.hpp"
#include "support/tensor.hpp"

namespace flashtile::test {
namespace {

// A power of two, so that also float32 inputs, multiples of kGrid, move by exactly this much. The
// five-point formula is off by kStep^4 / 30 of the fifth derivative.
constexpr double kStep = 0x1p-10;
constexpr double kGrid = 0x1p-12;
constexpr double kTolerance = 1e-6;
constexpr int64_t kMaxElements = 48;

/// One element of a tensor as a tensor of its own.
TensorView element_view(const TensorView& tensor, int64_t flat) {
  int64_t offset = 0;
  for (int d = tensor.ndim - 1; d >= 0; --d) {
    const auto i = static_cast<size_t>(d);
    offset += flat % tensor.shape[i] * tensor.strides[i];
    flat /= tensor.shape[i];
  }
  char* address = static_cast<char*>(tensor.data) + offset * dtype_bytes(tensor.dtype);
  return {address, tensor.dtype, std::initializer_list<int64_t>{}};
}

class LossOf {
 public:
  /// `backward` is a call whose tensors are set; its out and lse are overwritten.
  explicit LossOf(const OpCall& backward)
      : forward_(cli::forward_call(backward)),
        dout_(cli::to_numbers(backward.tensor("dout"))),
        dlse_(backward.tensor("dlse") ? cli::to_numbers(backward.tensor("dlse"))
                                      : std::vector<double>()) {
    context_.implementation = "reference";
  }

  double operator()() const {
    forward_.run(context_);
    double loss = 0;
    const std::vector<double> out = cli::to_numbers(forward_.tensor("out"));
    for (size_t i = 0; i < out.size(); ++i) loss += out[i] * dout_[i];
    if (dlse_.empty()) return loss;
    const std::vector<double> lse = cli::to_numbers(forward_.tensor("lse"));
    for (size_t i = 0; i < lse.size(); ++i) {
      if (std::isfinite(lse[i])) loss += lse[i] * dlse_[i];
    }
    return loss;
  }

 private:
  OpCall forward_;
  std::vector<double> dout_, dlse_;
  Context context_;
};

double derivative(const LossOf& loss, const TensorView& element) {
  const double at = get(element, {});
  const auto loss_at = [&](double steps) {
    set(element, {}, at + steps * kStep);
    return loss();
  };
  const double difference = loss_at(-2) - 8 * loss_at(-1) + 8 * loss_at(1) - loss_at(2);
  set(element, {}, at);
  return difference / (12 * kStep);
}

/// The input that a result is the gradient of.
std::string input_of(const OpSpec& spec, const std::string& gradient) {
  const TensorSpec& row = *spec.find_tensor(gradient);
  if (!row.is_family()) return std::string(row.gradient_of);
  return family_name(row.gradient_of, family_suffix(row.name, gradient));
}

void expect_matching_gradient(const OpCall& call, const LossOf& loss, const std::string& name) {
  const TensorView input = call.tensor(input_of(call.spec(), name));
  const std::vector<double> gradient = cli::to_numbers(call.tensor(name));
  double size = 1;
  for (const double x : gradient) size = std::max(size, std::abs(x));
  const int64_t count = input.numel();
  const int64_t stride = std::max<int64_t>(1, count / kMaxElements);
  double largest = 0;
  for (int64_t n = 0; n < count; n += stride) {
    const TensorView element = element_view(input, n);
    const double analytic = gradient[static_cast<size_t>(n)];
    largest = std::max(largest, std::abs(analytic));
    if (!std::isfinite(get(element, {}))) {
      EXPECT_EQ(analytic, 0) << name << " element " << n;
      continue;
    }
    EXPECT_NEAR(analytic, derivative(loss, element), kTolerance * size) << name << " element " << n;
  }
  EXPECT_GT(largest, 1e-4) << name << " is 0 everywhere";
}

class AttentionGradients : public testing::TestWithParam<ProblemParam> {};

TEST_P(AttentionGradients, MatchFiniteDifferences) {
  const cli::OwnedCall owned = cli::random_call(parse_problem(GetParam().text), 7);
  const OpCall& call = owned.call;
  std::vector<std::string> gradients;
  for (const std::string& name : call.tensor_names()) {
    const TensorSpec& row = *call.spec().find_tensor(name);
    if (!row.gradient_of.empty()) gradients.push_back(name);
    const TensorView tensor = call.tensor(name);
    if (row.direction != Direction::kIn || tensor.dtype != DType::kF32) continue;
    std::vector<double> values = cli::to_numbers(tensor);
    for (double& x : values) x = std::round(x / kGrid) * kGrid;
    cli::from_numbers(values, tensor);
  }
  if (call.tensor("bias") && GetParam().text.find("deterministic") != std::string::npos) {
    for (const int64_t n : {1, 3, 8}) set(element_view(call.tensor("bias"), n), {}, -kInf);
  }
  const LossOf loss(call);
  loss();
  Context context;
  context.implementation = "reference";
  call.run(context);
  ASSERT_GE(gradients.size(), 3u);
  for (const std::string& name : gradients) expect_matching_gradient(call, loss, name);
}

/// Each with lse's gradient, in double.
std::vector<ProblemParam> problems() {
  std::vector<ProblemParam> params;
  for (const char* text : {
           ":b2:hq2:sq5:sk7:d3:dv4",
           ":b2:hq4:hkv2:sq5:sk7:d3:causal",
           ":b1:hq2:hkv1:sq7:sk5:d3:causal",
           ":b1:hq2:sq6:sk9:d3:window_left=2:window_right=1",
           ":b1:hq2:sq6:sk9:d3:attention_chunk=3:causal",
           ":b1:hq2:sq6:sk9:d3:causal:query_offset=1",
           ":b1:hq2:sq6:sk9:d3:softmax_scale=-0.8",
           ":b1:hq2:sq6:sk9:d3:softcap=1.5",
           ":b2:hq4:hkv2:sq5:sk7:d3:alibi_slopes[hq]",
           ":b2:hq4:hkv2:sq5:sk7:d3:alibi_slopes[b,hq]:causal",
           ":b2:hq4:hkv2:sq5:sk7:d3:sink",
           ":b2:hq4:hkv2:sq7:sk5:d3:sink:causal",
           ":b2:hq4:hkv2:sq5:sk7:d3:bias[b,hq,sq,sk]",
           ":b2:hq4:hkv2:sq5:sk7:d3:bias[1,hq,sq,sk]:causal",
           ":b2:hq4:hkv2:sq5:sk7:d3:bias[b,1,sq,sk]",
           ":b2:hq4:hkv2:sq5:sk7:d3:bias[b,hq,1,sk]:window_left=3",
           ":b2:hq4:hkv2:sq5:sk7:d3:bias[1,1,1,sk]",
           ":b2:hq4:hkv2:sq5:sk7:d3:bias[b,hq,sq,sk]:sink:deterministic",
           ":b2:hq4:hkv2:sq5:sk7:d3:dropout_p=0.3:dropout_seed=5",
           ":b2:hq4:hkv2:sq5:sk37:d3:dropout_p=0.5:sink:softcap=2",
           ":hq4:hkv2:d3:cu_seqlens_q={0,3,3,8}:cu_seqlens_k={0,4,6,13}:causal:alibi_slopes[b,hq]",
           ":hq4:hkv2:d3:cu_seqlens_q={0,3,8}:cu_seqlens_k={0,4,13}:bias[b,hq,sq,sk]:sink",
           // flash-attention PR 2544
           ":hq2:d3:cu_seqlens_q={0,3,8}:cu_seqlens_k={0,4,13}:softcap=1.5:causal",
           ":b2:hq2:sq5:sk9:d3:seqused_k={9,6}:leftpad_k={2,1}:bias[1,hq,sq,sk]",
           ":b1:hq2:sq8:sk8:d3:block_rows=2:block_cols=3:block_counts[b,hq,4]:"
           "block_indices[b,hq,4,2]:sink",
           ":b2:hq2:sq5:sk7:d3:mask='(q_idx + k_idx) % 3 != 1'",
           ":b2:hq2:sq5:sk7:d3:score='score * score * 0.5 + 0.1 * score'",
           ":b2:hq2:sq5:sk7:d3:score='tanh(score) + exp(0.3 * score) + sigmoid(score)'",
           ":b2:hq2:sq5:sk7:d3:score='sin(score) + cos(2 * score) + log(1.0 + score * score)'",
           ":b2:hq2:sq5:sk7:d3:score='pow(score * score + 1.0, 0.75) + sqrt(score * score + 2.0)'",
           ":b2:hq2:sq5:sk7:d3:score='score * s[0]':aux.s[1]",
           ":b2:hq2:sq5:sk7:d3:score='score * s + s * s':aux.s[]:mask='k_idx + 1 < n + 2 * "
           "seqlen_k':aux.n.i32[]",
           ":b2:hq4:hkv2:sq5:sk7:d3:score='score * g[batch, head]':aux.g[b,hq]:causal",
           ":b2:hq2:sq5:sk7:d3:score='score + r[q_idx] * c[k_idx]':aux.r[sq]:aux.c[sk]",
           ":b2:hq2:sq5:sk7:d3:score='score + d[head, q_idx - k_idx + seqlen_k - 1]':aux.d[hq,11]",
           ":b2:hq2:sq5:sk7:d3:score='score * t[(q_idx * 7 + k_idx) % 4] + t[0]':aux.t[4]",
           ":b2:hq2:sq5:sk7:d3:score='score + e[ids[q_idx], "
           "ids[k_idx]]':aux.e[4,4]:aux.ids.i32[sk]",
           ":b2:hq2:sq5:sk7:d3:score='k_idx % 2 == 0 ? score * g[head] : score / (2.0 + g[0] * "
           "g[0])':aux.g[hq]",
           ":b2:hq2:sq5:sk7:d3:score='score * exp(g[head]) + log(g[head] * g[head] + 1.0)':"
           "aux.g[hq]:softcap=3:alibi_slopes[hq]:bias[b,hq,sq,sk]",
           ":b2:hq4:hkv2:sq5:sk17:d3:score='score + c[k_idx]':aux.c[sk]:dropout_p=0.2:sink:"
           "softcap=3:causal:window_left=9:bias[1,hq,1,sk]",
       }) {
    params.push_back({std::string("attention_bwd") + text + ":dlse:f64"});
  }
  return params;
}

INSTANTIATE_TEST_SUITE_P(Options, AttentionGradients, testing::ValuesIn(problems()),
                         [](const testing::TestParamInfo<ProblemParam>& test) {
                           return std::to_string(test.index) + "_" + test_name(test.param.text);
                         });

}  // namespace
}  // namespace flashtile::test
