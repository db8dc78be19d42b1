// SPDX-License-Identifier: Apache-2.0
#include "bench_run.hpp"

#include <algorithm>
#include <fstream>
#include <memory>

#include "default_problems.hpp"
#include "device_rotation.hpp"

namespace flashtile::cli {
namespace {

constexpr uint64_t kSeed = 1;

/// Memory that can be had without swapping; a lot where the system does not say.
double available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  double kibibytes = 0;
  std::string unit;
  while (file >> key >> kibibytes) {
    if (key == "MemAvailable:") return kibibytes * 1024;
    std::getline(file, unit);
  }
  return 64e9;
}

/// The calls that a pass runs, in order, and their memory.
struct PassCalls {
  std::optional<OwnedCall> forward;  ///< shares with `main` what that takes of it
  OwnedCall main;
};

/// What only the other op has as an optional result is not asked for.
void drop_other_tensors(ProblemText& text) {
  std::erase_if(text.tensors, [&](const TensorItem& item) {
    return text.spec->find_tensor(item.name) == nullptr;
  });
}

ProblemText forward_text(ProblemText text) {
  text.spec = forward_of(*text.spec);
  drop_other_tensors(text);
  return text;
}

PassCalls make_calls(const ProblemText& problem, BenchPass pass) {
  ProblemText text = problem;
  const OpSpec* backward = backward_of(*problem.spec);
  if (pass == BenchPass::kForward && forward_of(*problem.spec) != nullptr) {
    text.spec = forward_of(*problem.spec);
  }
  const bool needs_backward = pass == BenchPass::kBackward || pass == BenchPass::kBoth;
  if (needs_backward && backward != nullptr) text.spec = backward;
  text.implementation.clear();
  drop_other_tensors(text);
  PassCalls calls{std::nullopt, random_call(with_forward_results(text), kSeed)};
  if (pass != BenchPass::kBoth) return calls;
  if (needs_forward(*text.spec)) {
    calls.forward.emplace(forward_call(calls.main.call));
  } else {
    calls.forward.emplace(random_call(forward_text(text), kSeed));
  }
  return calls;
}

/// Its name as the op of `call` has it: "attention_fwd_avx2" for the backward op is
/// "attention_bwd_avx2".
std::string name_for(const OpCall& call, const OpSpec& asked_of, const std::string& asked) {
  return std::string(call.spec().name) + "_" + std::string(implementation_suffix(asked_of, asked));
}

Context forced(const OpCall& call, const OpSpec& asked_of, const std::string& asked,
               const Context& context) {
  Context result = context;
  if (!asked.empty()) result.implementation = name_for(call, asked_of, asked);
  return result;
}

/// Runs of the pass: on the host, or on the device in copies that `rotation` keeps.
Sampler sampler_of(const PassCalls& calls, const Context& forward_context,
                   const Context& main_context, std::unique_ptr<DeviceRotation>& rotation) {
  if (main_context.device.type == DeviceType::kCuda) {
    std::optional<Context> forward;
    if (calls.forward) forward = forward_context;
    rotation = std::make_unique<DeviceRotation>(calls.main.call, main_context, forward);
    return Sampler([&rotation](int num_runs) { return rotation->time_runs(num_runs); });
  }
  return Sampler(wall_clock([&calls, forward_context, main_context] {
    if (calls.forward) calls.forward->call.run(forward_context);
    calls.main.call.run(main_context);
  }));
}

/// Times the pass, and the plain implementation in turns where there is one with enough memory. A
/// device has none.
void time_calls(const PassCalls& calls, const Context& forward_context, const Context& main_context,
                const BenchSettings& settings, BenchResult& result) {
  const OpCall& main = calls.main.call;
  std::unique_ptr<DeviceRotation> rotation;
  Sampler own = sampler_of(calls, forward_context, main_context, rotation);
  const bool with_plain = settings.with_plain && rotation == nullptr;
  const PlainOp* plain = with_plain ? find_plain(main.spec().name) : nullptr;
  const bool has_memory =
      plain != nullptr && plain->temporary_bytes(main, main_context) < 0.6 * available_bytes();
  std::optional<Sampler> other;
  std::optional<OwnedCall> plain_main, plain_forward;
  if (has_memory) {
    plain_main.emplace(with_own_outputs(main));
    if (calls.forward) plain_forward.emplace(forward_call(plain_main->call));
    other.emplace(wall_clock([&] {
      if (plain_forward) {
        find_plain(plain_forward->call.spec().name)->run(plain_forward->call, {}, main_context);
      }
      plain->run(plain_main->call, {}, main_context);
    }));
  }
  constexpr int kMinSamples = 5, kMaxSamples = 200;
  const double budget = settings.seconds * 1000;
  while (own.num_samples() < kMaxSamples &&
         (own.num_samples() < kMinSamples || own.total() < budget)) {
    own.sample();
    // The plain one may be much slower: its part ends earlier, with one sample at least.
    if (other && (other->num_samples() == 0 || other->total() < budget)) other->sample();
  }
  result.times = own.times();
  if (other) result.plain_milliseconds = other->times().median;
  if (rotation != nullptr) result.clock_mhz = rotation->clock_mhz();
}

/// No speed without a right result: the largest error, and the first fault.
void add_check(const OpCall& call, const std::string& implementation, const Context& context,
               BenchResult& result) {
  const CallCheck check = check_call(call, implementation, context);
  result.max_error = std::max(result.max_error, check.max_error());
  if (result.fault.empty()) result.fault = check.fault;
}

}  // namespace

std::string_view pass_name(BenchPass pass) {
  switch (pass) {
    case BenchPass::kForward:
      return "fwd";
    case BenchPass::kBackward:
      return "bwd";
    case BenchPass::kBoth:
      return "fwd+bwd";
    default:
      return "op";
  }
}

BenchResult bench_problem(const ProblemText& problem, BenchPass pass,
                          const std::string& implementation, const BenchSettings& settings,
                          const Context& context) {
  const PassCalls calls = make_calls(problem, pass);
  const OpCall& main = calls.main.call;
  BenchResult result;
  result.problem = format_problem(problem);
  result.pass = pass_name(pass);
  result.dtype = leading_dtype(main);
  const Context main_context = forced(main, *problem.spec, implementation, context);
  const Explanation explanation = explain_on(main, main_context);
  result.implementation = explanation.chosen;
  if (result.implementation.empty()) {
    result.implementation = main_context.implementation;
    result.fault = "no implementation takes this problem";
    for (const Candidate& candidate : explanation.candidates) {
      if (candidate.implementation == result.implementation) result.fault = candidate.refusal;
    }
    return result;
  }
  Context forward_context = context;
  if (calls.forward) {
    forward_context = forced(calls.forward->call, main.spec(), result.implementation, context);
  }
  add_check(main, result.implementation, context, result);
  if (calls.forward) {
    add_check(calls.forward->call, forward_context.implementation, context, result);
  }
  if (!result.fault.empty()) return result;

  run_forward_of(main, implementation_suffix(main.spec(), result.implementation), context);
  result.operations = count_operations(main);
  result.bytes = static_cast<double>(call_bytes(main));
  if (calls.forward) {
    const OpCall& forward = calls.forward->call;
    if (result.operations) *result.operations += count_operations(forward).value_or(0);
    result.bytes += static_cast<double>(call_bytes(forward));
  }
  time_calls(calls, forward_context, main_context, settings, result);
  return result;
}

}  // namespace flashtile::cli
