// SPDX-License-Identifier: Apache-2.0
//
// Extreme log decays in linear attention: resets leave nothing, weak ones keep everything, and no
// exponential overflows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/shape_spec.hpp"
#include "op_runs.hpp"
#include "support/attention_runs.hpp"
#include "support/linear_problems.hpp"
#include "support/tensor.hpp"

namespace flashtile::test {
namespace {

constexpr int64_t kLength = 9;
constexpr int64_t kReset = 5;

void fill(const TensorView& tensor, double value) {
  cli::from_numbers(std::vector<double>(static_cast<size_t>(tensor.numel()), value), tensor);
}

void run_by(const OpCall& call, const std::string& implementation) {
  const cli::RunResult result = cli::run_forced(call, implementation, one_worker());
  ASSERT_EQ(result.text, "") << implementation;
}

/// Sets all gates of row `t`; what reads the old state of low-rank updates is 0 there. False where
/// the op has no gate.
bool reset_at(const OpCall& call, int64_t t) {
  // slstm also sees the past through its gates.
  if (call.spec().find_tensor("initial_hidden") != nullptr) return false;
  const std::vector<std::string> gates = gate_names(call);
  for (const std::string& name : gates) fill(call.tensor(name).sliced(1, t, t + 1), -kInf);
  if (call.spec().find_tensor("a") != nullptr) fill(call.tensor("a").sliced(1, t, t + 1), 0);
  return !gates.empty();
}

/// rwkv6 reads the state before the row, so that its output follows one row later.
int64_t first_fresh_row(const OpCall& call) {
  return call.spec().name.starts_with("rwkv6") ? kReset + 1 : kReset;
}

void a_reset_begins_anew(const LinearCase& one) {
  const cli::OwnedCall call = linear_call(one.forward("b2:t9"));
  if (!reset_at(call.call, kReset)) return;
  // Large enough to show in any result that it reaches, small enough for float32.
  for (const std::string& name : call.call.tensor_names()) {
    if (name == "initial_state" || name == "initial_state_k" || name == "initial_norm") {
      fill(call.call.tensor(name), 1e15);
    }
  }
  for (const std::string& implementation : call.call.spec().implementations()) {
    run_by(call.call, implementation);
    cli::OwnedCall fresh = part_of(call.call, kReset, kLength);
    for (const std::string& name : fresh.call.tensor_names()) {
      if (name.starts_with("initial_") && name != "initial_max") fresh.call.set_tensor(name, {});
    }
    run_by(fresh.call, implementation);
    const int64_t first = first_fresh_row(call.call);
    const TensorView rows = time_slice(call.call, call.call.tensor("out"), first, kLength);
    const TensorView want =
        time_slice(call.call, fresh.call.tensor("out"), first - kReset, kLength - kReset);
    double size = 0;
    for (const double x : cli::to_numbers(want)) size = std::max(size, std::abs(x));
    EXPECT_LT(max_difference(rows, want), 2e-5 * size) << implementation;
    for (const std::string& name : call.call.tensor_names()) {
      if (!name.starts_with("final_") || name == "final_max") continue;
      size = 1e-30;
      for (const double x : cli::to_numbers(fresh.call.tensor(name))) {
        size = std::max(size, std::abs(x));
      }
      EXPECT_LT(max_difference(call.call.tensor(name), fresh.call.tensor(name)), 2e-5 * size)
          << implementation << " " << name;
    }
  }
}

TEST(LinearGates, AResetBeginsAnew) { for_each_linear_case(a_reset_begins_anew); }

void no_gradient_passes_a_reset(const LinearCase& one) {
  const cli::OwnedCall call = linear_call(one.backward("b2:t9"));
  if (!reset_at(call.call, kReset)) return;
  // What rows before the reset give is not asked for.
  fill(call.call.tensor("dout").sliced(1, 0, first_fresh_row(call.call)), 0);
  for (const std::string& implementation : call.call.spec().implementations()) {
    run_by(call.call, implementation);
    for (const std::string& gate : gate_names(call.call)) {
      const TensorView at_reset = call.call.tensor("d" + gate).sliced(1, kReset, kReset + 1);
      for (const double x : cli::to_numbers(at_reset)) EXPECT_EQ(x, 0) << implementation << gate;
    }
    for (const std::string& name : call.call.tensor_names()) {
      if (!call.call.writes(name)) continue;
      const TensorView tensor = call.call.tensor(name);
      if (name.starts_with("dinitial_")) {
        for (const double x : cli::to_numbers(tensor)) EXPECT_EQ(x, 0) << implementation << name;
      } else if (is_timed(call.call, name)) {
        // Kernels may sum a gate's gradient over all later rows, whose rounding stays.
        const std::vector<std::string> gates = gate_names(call.call);
        const bool is_sum = std::find(gates.begin(), gates.end(), name.substr(1)) != gates.end();
        double size = 0;
        for (const double x : cli::to_numbers(tensor)) size = std::max(size, std::abs(x));
        for (const double x : cli::to_numbers(tensor.sliced(1, 0, kReset))) {
          EXPECT_LE(std::abs(x), is_sum ? 1e-6 * size : 0) << implementation << " " << name;
        }
      }
      for (const double x : cli::to_numbers(tensor)) {
        EXPECT_TRUE(std::isfinite(x)) << implementation << " " << name;
      }
    }
  }
}

TEST(LinearGates, NoGradientPassesAReset) { for_each_linear_case(no_gradient_passes_a_reset); }

/// Gates that alternate between keeping all, forgetting nearly all and forgetting all.
void strong_gates_stay_finite(const LinearCase& one) {
  for (const bool is_backward : {false, true}) {
    const std::string lengths = "b1:t150";
    const cli::OwnedCall call =
        linear_call(is_backward ? one.backward(lengths) : one.forward(lengths));
    const std::vector<std::string> gates = gate_names(call.call);
    if (gates.empty()) return;
    for (const std::string& name : gates) {
      std::vector<double> values = cli::to_numbers(call.call.tensor(name));
      constexpr double kGates[] = {-1e4, 0, -60, -kInf, -0.01, -200, -1e-9};
      for (size_t i = 0; i < values.size(); ++i) values[i] = kGates[i % std::size(kGates)];
      cli::from_numbers(values, call.call.tensor(name));
    }
    if (call.call.spec().find_tensor("a") != nullptr) fill(call.call.tensor("a"), 0);
    for (const std::string& implementation : call.call.spec().implementations()) {
      run_by(call.call, implementation);
      for (const std::string& name : call.call.tensor_names()) {
        if (!call.call.writes(name)) continue;
        for (const double x : cli::to_numbers(call.call.tensor(name))) {
          ASSERT_TRUE(std::isfinite(x)) << implementation << " " << name;
        }
      }
    }
  }
}

TEST(LinearGates, StrongOnesStayFinite) { for_each_linear_case(strong_gates_stay_finite); }

double largest(const TensorView& tensor) {
  double size = 0;
  for (const double x : cli::to_numbers(tensor)) size = std::max(size, std::abs(x));
  return size;
}

constexpr int64_t kResetAgain = 33;

/// Gates that differ from channel to channel, and a row of resets.
void set_mixed_gates(const OpCall& call) {
  const TensorView gate = call.tensor(gate_names(call).front());
  std::vector<double> values = cli::to_numbers(gate);
  constexpr double kGates[] = {-1e4, 0, -60, -0.5, -0.01, -200, -1e-9, -kInf, -3};
  for (size_t i = 0; i < values.size(); ++i) values[i] = kGates[i % 53 % std::size(kGates)];
  cli::from_numbers(values, gate);
  fill(gate.sliced(1, kResetAgain, kResetAgain + 1), -kInf);
}

/// Rows [begin, end) of `name`, where they should have no errors but those of some roundings to 8
/// bits; a sum over gradients of later rows has more of these.
void expect_rows(const OpCall& call, const OpCall& exact, const std::string& name, int64_t begin,
                 int64_t end, const std::string& what) {
  if (begin == end) return;
  const TensorView want = exact.tensor(name);
  EXPECT_LT(max_difference(call.tensor(name).sliced(1, begin, end), want.sliced(1, begin, end)),
            0.01 * largest(want))
      << name << " of rows " << begin << " to " << end << ", " << what;
}

/// An op whose bf16 inputs go in chunks of vector decay.
struct ChunkedDecay {
  std::string name;
  std::string sizes;
  std::vector<std::string> states;  ///< as in initial_state
  std::string q, g;                 ///< names
};

const std::vector<ChunkedDecay>& chunked_decays() {
  static const std::vector<ChunkedDecay> all = {
      {"gla", "d40:dv70", {"state"}, "q", "g"},
      {"rwkv6", "d40:dv70", {"state"}, "r", "w"},
      {"gsa", "d50:dv70:m56", {"state_k", "state_v"}, "q", "g"}};
  return all;
}

/// A problem of it with states; prefixes of those that a pass takes.
cli::OwnedCall chunked_call(const ChunkedDecay& op, const std::string& pass,
                            const std::vector<std::string>& prefixes) {
  std::string text = op.name + pass + ":b1:hq2:hkv1:t75:" + op.sizes + ":bf16";
  for (const std::string& prefix : prefixes) {
    for (const std::string& state : op.states) text += ":" + prefix + state;
  }
  return linear_call(text);
}

void expect_states(const OpCall& call, const OpCall& exact, const ChunkedDecay& op,
                   const std::string& prefix, const std::string& what) {
  for (const std::string& state : op.states) {
    const TensorView want = exact.tensor(prefix + state);
    EXPECT_LT(max_difference(call.tensor(prefix + state), want), 0.01 * largest(want))
        << op.name << ", " << prefix << state << ", " << what;
  }
}

/// Vector decay of bf16 inputs goes in chunks: neither gates that differ from channel to channel
/// nor what a reset cuts off may show beyond their rows.
TEST(LinearGates, ChunksOfVectorDecayStopAtResets) {
  constexpr int64_t kRows = 75, kPoisoned = 20, kFresh = kResetAgain + 1;
  for (const ChunkedDecay& op : chunked_decays()) {
    const cli::OwnedCall call = chunked_call(op, "_fwd", {"initial_", "final_"});
    set_mixed_gates(call.call);
    cli::OwnedCall exact = cli::with_own_outputs(call.call);
    run_by(exact.call, "reference");
    for (const std::string& implementation : call.call.spec().implementations()) {
      run_by(call.call, implementation);
      expect_rows(call.call, exact.call, "out", 0, kRows, implementation);
      expect_states(call.call, exact.call, op, "final_", implementation);
    }
    std::vector<std::string> names = {"k", "v"};
    for (const std::string& state : op.states) names.push_back("initial_" + state);
    for (const std::string& poisoned : names) {
      const TensorView tensor = call.call.tensor(poisoned);
      const std::vector<double> clean = cli::to_numbers(tensor);
      const bool is_state = poisoned.size() > 1;
      fill(tensor.sliced(is_state ? 2 : 1, kPoisoned, kPoisoned + 1), is_state ? kInf : kNan);
      for (const std::string& implementation : call.call.spec().implementations()) {
        const std::string what = implementation + ", " + poisoned;
        run_by(call.call, implementation);
        expect_rows(call.call, exact.call, "out", 0, is_state ? 0 : kPoisoned, what);
        expect_rows(call.call, exact.call, "out", kFresh, kRows, what);
      }
      cli::from_numbers(clean, tensor);
    }
  }
}

TEST(LinearGates, GradientsOfChunksStopAtResets) {
  constexpr int64_t kRows = 75, kPoisoned = 50;
  for (const ChunkedDecay& op : chunked_decays()) {
    const cli::OwnedCall call = chunked_call(op, "_bwd", {"initial_", "dfinal_"});
    set_mixed_gates(call.call);
    cli::OwnedCall exact = cli::with_own_outputs(call.call);
    run_by(exact.call, "reference");
    std::vector<std::string> gradients = {"d" + op.q, "dk", "dv", "d" + op.g};
    if (op.name == "gsa") gradients.push_back("ds");
    for (const std::string& implementation : call.call.spec().implementations()) {
      run_by(call.call, implementation);
      for (const std::string& name : gradients) {
        expect_rows(call.call, exact.call, name, 0, kRows, implementation);
      }
      expect_states(call.call, exact.call, op, "dinitial_", implementation);
    }
    std::vector<std::string> names = {"dout"};
    for (const std::string& state : op.states) names.push_back("dfinal_" + state);
    for (const std::string& poisoned : names) {
      const bool is_state = poisoned != "dout";
      const TensorView tensor = call.call.tensor(poisoned);
      const std::vector<double> clean = cli::to_numbers(tensor);
      fill(tensor.sliced(is_state ? 2 : 1, is_state ? 7 : kPoisoned, is_state ? 8 : kPoisoned + 1),
           is_state ? kInf : kNan);
      for (const std::string& implementation : call.call.spec().implementations()) {
        const std::string what = implementation + ", " + poisoned;
        run_by(call.call, implementation);
        for (const std::string& name : gradients) {
          expect_rows(call.call, exact.call, name, 0, kResetAgain, what);
        }
        if (!is_state) expect_rows(call.call, exact.call, "dv", kPoisoned + 1, kRows, what);
      }
      cli::from_numbers(clean, tensor);
    }
  }
}

/// A decay's gradient is a sum over all later rows: of those that have nothing to do with a row, no
/// roundings to 8 bits may be left in it.
TEST(LinearGates, RoundingsOfChunksDoNotReachEarlierOnes) {
  constexpr int64_t kRows = 200, kFirst = 130, kEarly = 60;
  for (const char* text :
       {"gla_bwd:b1:hq1:t200:d64:dv64:bf16", "gsa_bwd:b1:hq1:t200:d64:dv64:m64:bf16"}) {
    const cli::OwnedCall call = linear_call(text);
    fill(call.call.tensor("g"), -3);
    fill(call.call.tensor("dout").sliced(1, 0, kFirst), 0);
    for (const std::string& implementation : call.call.spec().implementations()) {
      run_by(call.call, implementation);
      const TensorView dg = call.call.tensor("dg");
      EXPECT_GT(largest(dg.sliced(1, kFirst, kRows)), 0.1) << text << implementation;
      EXPECT_LT(largest(dg.sliced(1, 0, kEarly)), 1e-4 * largest(dg)) << text << implementation;
    }
  }
}

/// Numbers of each head of a tensor whose axis 2, or only axis, is heads.
std::vector<double> of_head(const TensorView& tensor, int64_t head) {
  return cli::to_numbers(tensor.sliced(tensor.ndim > 1 ? 2 : 0, head, head + 1));
}

/// Largest error of a head's numbers, against the largest of them.
double head_error(const TensorView& found, const TensorView& exact, int64_t head) {
  const std::vector<double> got = of_head(found, head);
  const std::vector<double> want = of_head(exact, head);
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error = std::max(error, std::abs(got[i] - want[i]));
    size = std::max(size, std::abs(want[i]));
  }
  return error / size;
}

/// Log decays around -9 for even heads, weak ones for the others.
void alternate_heads(const TensorView& gate) {
  const int axis = gate.ndim > 1 ? 2 : 0;
  for (int64_t head = 0; head < gate.shape[static_cast<size_t>(axis)]; ++head) {
    const TensorView part = gate.sliced(axis, head, head + 1);
    std::vector<double> values = cli::to_numbers(part);
    for (size_t i = 0; i < values.size(); ++i) {
      const double x = static_cast<double>(i * 7 % 11) / 11;
      values[i] = head % 2 == 0 ? -10 + 2 * x : -0.02 - 0.1 * x;
    }
    cli::from_numbers(values, part);
  }
}

/// Steps of 1 for mamba2, whose gate is summed over rows: with terms of one sign, so that none of
/// the sum cancels.
void make_steps_even(const OpCall& call) {
  for (const std::string& name : call.tensor_names()) {
    const TensorView tensor = call.tensor(name);
    if (call.writes(name) || name == "A") continue;
    if (name == "dt" || name == "dt_bias") {
      fill(tensor, name == "dt" ? 1 : 0);
      continue;
    }
    std::vector<double> values = cli::to_numbers(tensor);
    for (double& x : values) x = std::abs(x);
    cli::from_numbers(values, tensor);
  }
}

/// What a gate's gradient is of heads that forget all but e^-9 in a row is 1e-4 of what q and k of
/// the same row have to do with each other, and is found as if that were not there.
void gradients_of_strong_gates(const LinearCase& one) {
  const bool has_steps = one.op == "mamba2";
  // Chunks of rows and a part of one, so that sums pass from one to the next.
  const cli::OwnedCall call = linear_call(one.backward("b1:t150"));
  const std::vector<std::string> gates =
      has_steps ? std::vector<std::string>{"A"} : gate_names(call.call);
  if (has_steps) make_steps_even(call.call);
  for (const std::string& name : gates) alternate_heads(call.call.tensor(name));
  cli::OwnedCall exact = cli::with_own_outputs(call.call);
  run_by(exact.call, "reference");
  // Sums of a few products of float32 numbers, each rounded, and a decay of 2 roundings.
  constexpr double kTolerance = 32 * 6e-8;
  for (const std::string& implementation : call.call.spec().implementations()) {
    run_by(call.call, implementation);
    for (const std::string& name : gates) {
      const TensorView found = call.call.tensor("d" + name);
      for (int64_t head = 0; head < found.shape[found.ndim > 1 ? 2 : 0]; ++head) {
        EXPECT_LT(head_error(found, exact.call.tensor("d" + name), head), kTolerance)
            << implementation << " d" << name << " of head " << head;
      }
    }
  }
}

TEST(LinearGates, GradientsOfStrongOnesAreAsExact) {
  for_each_linear_case(gradients_of_strong_gates);
}

/// S and a sum of q.S over 10^5 rows, against a recurrence written down here.
TEST(LinearGates, AHundredThousandRowsDoNotDrift) {
  constexpr int64_t kRows = 100000;
  const cli::OwnedCall call = linear_call("simple_gla_fwd:b1:hq1:t100000:d1:g:scale=1:final_state");
  const std::vector<double> k = cli::to_numbers(call.call.tensor("k"));
  const std::vector<double> v = cli::to_numbers(call.call.tensor("v"));
  const std::vector<double> q = cli::to_numbers(call.call.tensor("q"));
  std::vector<double> g = cli::to_numbers(call.call.tensor("g"));
  for (double& x : g) x *= 1e-4;
  cli::from_numbers(g, call.call.tensor("g"));
  g = cli::to_numbers(call.call.tensor("g"));
  std::vector<double> want;
  double state = 0;
  double size = 0;
  for (size_t t = 0; t < kRows; ++t) {
    state = std::exp(g[t]) * state + k[t] * v[t];
    want.push_back(state * q[t]);
    size = std::max(size, std::abs(want.back()));
  }
  for (const std::string& implementation : call.call.spec().implementations()) {
    run_by(call.call, implementation);
    const std::vector<double> out = cli::to_numbers(call.call.tensor("out"));
    double error = 0;
    for (size_t t = 0; t < kRows; ++t) error = std::max(error, std::abs(out[t] - want[t]));
    EXPECT_LT(error, 1e-5 * size) << implementation;
  }
}

/// Rates of e^-100 to e^100 and inputs from -200 to 200: products may be numbers of float32 where
/// factors are none. Where the gate is a reset its gradient is large, and times 0 it has to be 0.
TEST(LinearGates, OfSaturatedPartsAreProducts) {
  constexpr int64_t kHeads = 41, kRows = 101;
  for (const bool has_bound : {false, true}) {
    const std::string rest =
        std::string(":b1:hq41:t101:d1:A_log") + (has_bound ? ":lower_bound=-5" : "");
    const cli::OwnedCall fwd = linear_call("log_decay_gate_fwd" + rest);
    const cli::OwnedCall bwd = linear_call("log_decay_gate_bwd" + rest);
    for (const OpCall* call : {&fwd.call, &bwd.call}) {
      for (int64_t h = 0; h < kHeads; ++h) {
        set(call->tensor("A_log"), {h}, static_cast<double>(5 * h - 100));
        for (int64_t t = 0; t < kRows; ++t) {
          set(call->tensor("x"), {0, t, h, 0}, static_cast<double>(4 * t - 200));
        }
      }
    }
    cli::OwnedCall exact = cli::with_own_outputs(fwd.call);
    run_by(exact.call, "reference");
    const std::vector<double> want = cli::to_numbers(exact.call.tensor("out"));
    for (const std::string& implementation : fwd.call.spec().implementations()) {
      run_by(fwd.call, implementation);
      const std::vector<double> out = cli::to_numbers(fwd.call.tensor("out"));
      for (size_t i = 0; i < out.size(); ++i) {
        if (std::isinf(want[i])) {
          EXPECT_EQ(out[i], want[i]) << implementation << " " << i;
        } else {  // an exponent of 200 in float32 has an error of 1e-5
          EXPECT_NEAR(out[i], want[i], 1e-30 + 3e-5 * std::abs(want[i])) << implementation << i;
        }
      }
    }
    fill(bwd.call.tensor("dout"), 0);
    for (const std::string& implementation : bwd.call.spec().implementations()) {
      run_by(bwd.call, implementation);
      for (const char* name : {"dx", "dA_log"}) {
        for (const double x : cli::to_numbers(bwd.call.tensor(name))) {
          EXPECT_EQ(x, 0) << implementation << " " << name;
        }
      }
    }
  }
}

/// Where heads share a state or a key: as if each had its own copy.
void shared_heads_are_copies(const LinearCase& one) {
  const cli::OwnedCall shared = linear_call(one.backward("b2:t7"));
  const OpSpec& spec = shared.call.spec();
  std::string few, text = one.backward("b2:t7");
  for (const auto& [dim, from, to] :
       {std::tuple{"num_heads_kv", ":hkv2", ":hkv4"}, std::tuple{"num_heads_v", ":hq4", ":hq8"},
        std::tuple{"num_groups", ":num_groups=2", ":num_groups=4"}}) {
    if (spec.find_dim(dim) == nullptr || text.find(from) == std::string::npos) continue;
    few = std::string(dim) == "num_heads_v" ? "num_heads" : dim;
    text.replace(text.find(from), std::string(from).size(), to);
    break;
  }
  if (few.empty()) return;
  const auto axis_of = [&](const std::string& name) {
    for (const ShapeForm& form : parse_shape(spec.find_tensor(name)->shape)) {
      if (form.ndim != shared.call.tensor(name).ndim) continue;
      for (int d = 0; d < form.ndim; ++d) {
        if (form.entries[static_cast<size_t>(d)].name == few) return d;
      }
    }
    return -1;
  };
  const cli::OwnedCall copies = linear_call(text);
  for (const std::string& name : shared.call.tensor_names()) {
    if (shared.call.writes(name)) continue;
    const int axis = axis_of(name);
    const TensorView from = shared.call.tensor(name), to = copies.call.tensor(name);
    if (axis < 0 || from.shape[static_cast<size_t>(axis)] == to.shape[static_cast<size_t>(axis)]) {
      cli::from_numbers(cli::to_numbers(from), to);
      continue;
    }
    for (int64_t h = 0; h < to.shape[static_cast<size_t>(axis)]; ++h) {
      cli::from_numbers(cli::to_numbers(from.sliced(axis, h / 2, h / 2 + 1)),
                        to.sliced(axis, h, h + 1));
    }
  }
  // The state's own gradient arrives once at a shared state, and at one of its copies.
  for (const std::string& implementation : spec.implementations()) {
    for (const std::string& name : copies.call.tensor_names()) {
      if (!name.starts_with("dfinal_") || axis_of(name) < 0) continue;
      for (int64_t h = 1; h < copies.call.tensor(name).shape[1]; h += 2) {
        fill(copies.call.tensor(name).sliced(1, h, h + 1), 0);
      }
    }
    run_by(shared.call, implementation);
    run_by(copies.call, implementation);
    for (const std::string& name : shared.call.tensor_names()) {
      if (!shared.call.writes(name)) continue;
      const int axis = axis_of(name);
      const std::vector<double> got = cli::to_numbers(shared.call.tensor(name));
      double size = 1e-30;
      for (const double x : got) size = std::max(size, std::abs(x));
      if (axis < 0) {
        EXPECT_LT(max_difference(shared.call.tensor(name), copies.call.tensor(name)), 2e-5 * size)
            << implementation << " " << name;
        continue;
      }
      const TensorView sums = shared.call.tensor(name), parts = copies.call.tensor(name);
      for (int64_t h = 0; h < sums.shape[static_cast<size_t>(axis)]; ++h) {
        const std::vector<double> sum = cli::to_numbers(sums.sliced(axis, h, h + 1));
        const std::vector<double> a = cli::to_numbers(parts.sliced(axis, 2 * h, 2 * h + 1));
        const std::vector<double> b = cli::to_numbers(parts.sliced(axis, 2 * h + 1, 2 * h + 2));
        for (size_t i = 0; i < sum.size(); ++i) {
          EXPECT_NEAR(sum[i], a[i] + b[i], 2e-5 * size) << implementation << " " << name;
        }
      }
    }
  }
}

TEST(LinearHeads, SharedOnesAreCopies) { for_each_linear_case(shared_heads_are_copies); }

}  // namespace
}  // namespace flashtile::test
