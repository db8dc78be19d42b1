// SPDX-License-Identifier: Apache-2.0
#include "expectations.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "flashtile/error.hpp"
#include "terminal.hpp"

namespace flashtile::cli {
namespace {

using Numbers = std::vector<double>;

std::vector<std::string> output_names(const OpCall& call) {
  std::vector<std::string> names;
  for (const std::string& name : call.tensor_names()) {
    if (call.writes(name)) names.push_back(name);
  }
  return names;
}

double largest(const Numbers& numbers) {
  double result = 0;
  for (const double x : numbers) {
    if (std::isfinite(x)) result = std::max(result, std::abs(x));
  }
  return result;
}

double largest_difference(const Numbers& a, const Numbers& b) {
  double result = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(b[i])) result = std::max(result, std::abs(a[i] - b[i]));
  }
  return result;
}

/// Draws of noise for a result of a few numbers. A sum of random signs is small now and then, and
/// where it is the only number, or one of few, no other says how large it may be. In tiny problems
/// one score may decide all numbers of a result.
constexpr uint64_t kNoiseDraws = 4;
constexpr int64_t kFewNumbers = 4;
constexpr int64_t kTinyNumbers = 256;

/// The runs of a plain implementation that tolerances are made of.
class PlainRuns {
 public:
  PlainRuns(const OpCall& call, const PlainOp& plain, int64_t num_rows, const Context& context)
      : rough(with_own_outputs(call)), exact(promoted(call)), jittered(promoted(call)) {
    plain.run(rough.call, {PlainMode::kPlain, num_rows}, context);
    plain.run(exact.call, {PlainMode::kPlain, num_rows}, context);
    plain.run(jittered.call, {PlainMode::kJitter, num_rows}, context);
    if (forward_of(call.spec()) == nullptr) return;
    const std::vector<std::string> names = output_names(call);
    const auto have_at_most = [&](int64_t count) {
      return [&call, count](const auto& name) { return call.tensor(name).numel() <= count; };
    };
    const bool is_tiny = std::all_of(names.begin(), names.end(), have_at_most(kTinyNumbers));
    const auto is_few = have_at_most(is_tiny ? kTinyNumbers : kFewNumbers);
    const bool has_few = std::any_of(names.begin(), names.end(), is_few);
    for (uint64_t draw = 0; draw < (has_few ? kNoiseDraws : 1); ++draw) {
      const OwnedCall noise = promoted(call);
      plain.run(noise.call, {PlainMode::kNoise, num_rows, draw}, context);
      for (const std::string& name : names) {
        if (draw > 0 && !is_few(name)) continue;
        double& size = noise_sizes[name];
        size = std::max(size, largest(to_numbers(noise.call.tensor(name))));
      }
    }
  }

  /// Sets plain_error and floor; `e.values` are known.
  void set_tolerance(Expectation& e, DType dtype) const {
    const Numbers jitter_free = to_numbers(exact.call.tensor(e.name));
    const Numbers moved = to_numbers(jittered.call.tensor(e.name));
    const auto noise = noise_sizes.find(e.name);
    const double size = std::max(largest(e.values), noise == noise_sizes.end() ? 0 : noise->second);
    e.plain_error = largest_difference(to_numbers(rough.call.tensor(e.name)), e.values);
    e.floor = rounding_unit(dtype, e.name) * size + largest_difference(moved, jitter_free);
  }

  OwnedCall rough, exact, jittered;
  std::map<std::string, double> noise_sizes;  ///< of gradients
};

Expectation expectation_of(const OpCall& call, const std::string& name) {
  Expectation e;
  e.name = name;
  const TensorView tensor = call.tensor(name);
  e.shape = shape_of(tensor);
  e.values = to_numbers(tensor);
  e.is_exact = !is_floating(tensor.dtype);
  return e;
}

/// Where two computations in double differ by more than their rounding; empty when they agree.
/// `size` bounds the terms that results are summed from.
std::string double_fault(const Expectation& e, const TensorView& plain, double size) {
  const double unit = plain.dtype == DType::kF64 ? 1e-11 : 0x1p-22;
  const double difference = largest_difference(to_numbers(plain), e.values);
  if (difference <= unit * size) return {};
  return e.name + " of the reference differs from plain loops in double by " +
         number_text(difference) + ", allowed " + number_text(unit * size);
}

/// What plain loops in double give for some query rows; the other rows are NaN.
std::vector<Expectation> sampled_expectations(const OpCall& call, const PlainOp& plain,
                                              int64_t num_rows, const Context& context) {
  const PlainRuns runs(call, plain, num_rows, context);
  std::vector<Expectation> result;
  for (const std::string& name : output_names(call)) {
    Expectation e = expectation_of(runs.exact.call, name);
    if (e.is_exact) continue;
    runs.set_tolerance(e, leading_dtype(call));
    result.push_back(std::move(e));
  }
  return result;
}

}  // namespace

double rounding_unit(DType dtype, std::string_view tensor_name) {
  const bool is_logarithm = tensor_name == "lse" || tensor_name == "max_logit";
  if (dtype == DType::kBF16) return is_logarithm ? 0x1p-13 : 0x1p-8;
  if (dtype == DType::kF16) return is_logarithm ? 0x1p-15 : 0x1p-11;
  return dtype == DType::kF64 ? 0x1p-40 : 0x1p-20;
}

DType leading_dtype(const OpCall& call) {
  for (const std::string& name : call.tensor_names()) {
    const TensorSpec& row = *call.spec().find_tensor(name);
    const DType dtype = call.tensor(name).dtype;
    if (row.required && row.is_input() && is_floating(dtype)) return dtype;
  }
  return DType::kF32;
}

std::vector<Expectation> reference_expectations(const OpCall& call, const Context& context,
                                                std::string* disagreement) {
  const OpSpec& spec = call.spec();
  const std::string reference = reference_of(spec);
  OwnedCall exact = promoted(call);
  run_forward_of(exact.call, implementation_suffix(spec, reference), context);
  Context forced = context;
  forced.implementation = reference;
  forced.device = {};  // the reference works on the host
  exact.call.run(forced);

  const DType dtype = leading_dtype(call);
  std::vector<Expectation> result;
  for (const std::string& name : output_names(call)) {
    result.push_back(expectation_of(exact.call, name));
    // Without a plain implementation: some units of what it holds.
    result.back().floor = 4 * rounding_unit(dtype, name) * largest(result.back().values);
  }
  if (const PlainOp* plain = find_plain(spec.name)) {
    const PlainRuns runs(call, *plain, /*num_rows=*/0, context);
    for (Expectation& e : result) {
      if (e.is_exact) continue;
      runs.set_tolerance(e, dtype);
      if (!disagreement->empty()) continue;
      const double size = e.floor / rounding_unit(dtype, e.name);
      *disagreement = double_fault(e, runs.exact.call.tensor(e.name), size);
    }
  }
  mark_exact_zeros(result);
  return result;
}

double CallCheck::max_error() const {
  double result = 0;
  for (const Verdict& verdict : verdicts) result = std::max(result, verdict.error);
  return result;
}

namespace {

// What the reference, which evaluates pair by pair on one thread, does in some seconds.
constexpr double kAffordableBytes = 16e6;
constexpr int64_t kSampledRows = 16;

/// Runs `run` on a copy of the call with new outputs, and compares.
template <class Run>
CallCheck check_run(const OpCall& call, std::string_view suffix, const Context& context,
                    const Run& run) {
  const OpSpec& spec = call.spec();
  const PlainOp* plain = find_plain(spec.name);
  const bool is_sampled =
      plain != nullptr && plain->temporary_bytes(call, context) > kAffordableBytes;
  OwnedCall own = with_own_outputs(call);
  for (const std::string& name : call.tensor_names()) {
    const TensorSpec& row = *spec.find_tensor(name);
    if (!row.is_input() || is_forward_result(spec, name)) continue;
    const TensorView tensor = call.tensor(name);
    // Masking writes into incoming gradients, and those may be many rows of one element.
    if (is_sampled && name.starts_with('d')) {
      own.call.set_tensor(name, own.pool.convert(tensor, tensor.dtype));
    }
  }
  const PlainConfig config{PlainMode::kPlain, is_sampled ? kSampledRows : 0};
  if (is_sampled) plain->mask_gradients(own.call, config);

  CallCheck result;
  run_forward_of(own.call, suffix, context);
  std::vector<Expectation> expected;
  if (is_sampled) {
    result.method = std::to_string(kSampledRows) + " rows of each sequence";
    expected = sampled_expectations(own.call, *plain, kSampledRows, context);
  } else {
    result.method = "every element";
    expected = reference_expectations(own.call, context, &result.fault);
  }
  const RunResult outcome = run(own.call);
  if (!outcome.text.empty()) {
    result.fault = outcome.text;
    return result;
  }
  result.verdicts = judge(own.call, expected, is_sampled ? NanRule::kIgnored : NanRule::kRefused);
  if (result.fault.empty()) result.fault = fault_text(result.verdicts);
  return result;
}

}  // namespace

CallCheck check_call(const OpCall& call, const std::string& implementation,
                     const Context& context) {
  return check_run(call, implementation_suffix(call.spec(), implementation), context,
                   [&](const OpCall& own) { return run_forced(own, implementation, context); });
}

CallCheck check_plain(const OpCall& call, const Context& context) {
  return check_run(call, "", context, [&](const OpCall& own) {
    find_plain(call.spec().name)->run(own, {}, context);
    return RunResult{};
  });
}

}  // namespace flashtile::cli
