// SPDX-License-Identifier: Apache-2.0
//
// The delta rule over bf16 inputs, which some kernels take in chunks: resets, and what is not
// finite, anywhere within one.
#include <gtest/gtest.h>

#include <cmath>

#include "op_runs.hpp"
#include "support/attention_runs.hpp"
#include "support/linear_problems.hpp"
#include "support/tensor.hpp"

namespace flashtile::test {
namespace {

constexpr int64_t kLength = 150;
constexpr char kProblem[] =
    "gated_delta_rule_fwd:b1:hq1:t150:d48:dv56:initial_state:final_state:bf16";
constexpr char kBackward[] =
    "gated_delta_rule_bwd:b1:hq1:t150:d48:dv56:initial_state:dfinal_state:bf16";

TensorView row_of(const OpCall& call, const char* name, int64_t t) {
  return call.tensor(name).sliced(1, t, t + 1);
}

void fill(const TensorView& tensor, double value) {
  cli::from_numbers(std::vector<double>(static_cast<size_t>(tensor.numel()), value), tensor);
}

void run_by(const OpCall& call, const std::string& implementation) {
  const cli::RunResult result = cli::run_forced(call, implementation, one_worker());
  ASSERT_EQ(result.text, "") << implementation;
}

void expect_near(const TensorView& a, const TensorView& b, const std::string& what) {
  double size = 1e-30;
  for (const double x : cli::to_numbers(b)) size = std::max(size, std::abs(x));
  EXPECT_LT(max_difference(a, b), 0x1p-6 * size) << what;
}

void expect_strong_gates(const char* problem) {
  const cli::OwnedCall owned = linear_call(problem);
  constexpr double kGates[] = {-1e4, 0, -60, -0.01, -kInf, -0.5, -0.25, -200, -1e-9, -0.125, -0.1};
  for (int64_t t = 0; t < kLength; ++t) {
    // Long ones without a reset, too.
    const size_t n = static_cast<size_t>(t < 60 ? t : t % 3 == 0 ? 1 : 3) % std::size(kGates);
    fill(row_of(owned.call, "g", t), kGates[n]);
  }
  run_by(owned.call, "reference");
  for (const std::string& implementation : owned.call.spec().implementations()) {
    const cli::OwnedCall own = cli::with_own_outputs(owned.call);
    run_by(own.call, implementation);
    for (const std::string& name : own.call.tensor_names()) {
      if (!own.call.writes(name)) continue;
      expect_near(own.call.tensor(name), owned.call.tensor(name), implementation + " " + name);
      if (name != "dg") continue;
      for (int64_t t = 0; t < kLength; ++t) {
        if (get(owned.call.tensor("g"), {0, t, 0}) != -kInf) continue;
        EXPECT_EQ(get(own.call.tensor(name), {0, t, 0}), 0) << implementation << " row " << t;
      }
    }
  }
}

TEST(DeltaChunks, StrongGatesAndResetsAreThoseOfTheRecurrence) {
  expect_strong_gates(kProblem);
  expect_strong_gates(kBackward);
}

TEST(DeltaChunks, NanReachesWhatSeesItAlone) {
  constexpr int64_t kNanRow = 70, kResetRow = 90;
  for (const char* poisoned : {"k", "v", "beta", "initial_state"}) {
    const bool is_state = poisoned == std::string("initial_state");
    const cli::OwnedCall clean = linear_call(kProblem), owned = linear_call(kProblem);
    for (const cli::OwnedCall* each : {&clean, &owned}) {
      fill(row_of(each->call, "g", kResetRow), -kInf);
    }
    fill(is_state ? owned.call.tensor(poisoned) : row_of(owned.call, poisoned, kNanRow), kNan);
    const int64_t first = is_state ? 0 : kNanRow;
    for (const std::string& implementation : owned.call.spec().implementations()) {
      const std::string what = implementation + " " + poisoned;
      run_by(clean.call, implementation);
      run_by(owned.call, implementation);
      const TensorView out = owned.call.tensor("out");
      const TensorView expected = clean.call.tensor("out");
      expect_near(out.sliced(1, 0, first), expected.sliced(1, 0, first), what);
      expect_near(out.sliced(1, kResetRow, kLength), expected.sliced(1, kResetRow, kLength), what);
      expect_near(owned.call.tensor("final_state"), clean.call.tensor("final_state"), what);
      for (const double x : cli::to_numbers(out.sliced(1, first, kResetRow))) {
        EXPECT_TRUE(std::isnan(x)) << what;
      }
    }
  }
}

TEST(DeltaChunks, GradientsBehindAResetKnowNothingOfNanBeforeIt) {
  constexpr int64_t kNanRow = 70, kResetRow = 90;
  for (const char* poisoned : {"q", "k", "v", "beta", "dout", "initial_state"}) {
    const bool is_state = poisoned == std::string("initial_state");
    const cli::OwnedCall clean = linear_call(kBackward), owned = linear_call(kBackward);
    for (const cli::OwnedCall* each : {&clean, &owned}) {
      fill(row_of(each->call, "g", kResetRow), -kInf);
    }
    fill(is_state ? owned.call.tensor(poisoned) : row_of(owned.call, poisoned, kNanRow), kNan);
    for (const std::string& implementation : owned.call.spec().implementations()) {
      run_by(clean.call, implementation);
      run_by(owned.call, implementation);
      for (const char* name : {"dq", "dk", "dv", "dg", "dbeta"}) {
        const auto late = [&](const cli::OwnedCall& call) {
          return call.call.tensor(name).sliced(1, kResetRow, kLength);
        };
        expect_near(late(owned), late(clean), implementation + " " + name + " " + poisoned);
      }
      EXPECT_TRUE(std::isnan(get(owned.call.tensor("dk"), {0, kNanRow, 0, 0}))) << poisoned;
    }
  }
}

}  // namespace
}  // namespace flashtile::test
