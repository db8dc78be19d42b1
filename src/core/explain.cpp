// SPDX-License-Identifier: Apache-2.0
#include "flashtile/explain.hpp"

#include "core/memory_errors.hpp"
#include "core/problem_text.hpp"
#include "core/registry.hpp"
#include "flashtile/error.hpp"

namespace flashtile {

void fail_refused(std::string_view op, std::span<const Candidate> candidates) {
  std::string text = std::string(op) + ": no implementation takes this problem";
  for (const Candidate& candidate : candidates) {
    text += "\n  " + candidate.implementation + ": " + candidate.refusal;
  }
  throw Error(ErrorCode::kUnsupported, text);
}

std::string to_string(const Explanation& explanation) {
  std::string text = "problem: " + explanation.problem + "\n";
  text += "chosen:  " + (explanation.chosen.empty() ? "none" : explanation.chosen) + "\n";
  if (!explanation.plan.empty()) text += "plan:    " + explanation.plan + "\n";
  for (const Candidate& candidate : explanation.candidates) {
    text += "  " + candidate.implementation + ": " +
            (candidate.refusal.empty() ? "takes it" : candidate.refusal) + "\n";
  }
  return text;
}

std::vector<std::string> implementations(const std::string& op, DeviceType device) {
  const OpSpec* spec = find_op(op);
  if (spec == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, "implementations: there is no op '" + op + "'");
  }
  return spec->implementations(device);
}

Explanation explain(const std::string& problem_text, const Context& context) {
  static const Error no_memory = out_of_memory("explain");
  return with_memory_errors(no_memory, [&] {
    const ProblemText problem = parse_problem(problem_text);
    Context named = context;
    if (!problem.implementation.empty()) named.implementation = problem.implementation;
    Explanation result = make_call(problem).explain(named);
    result.problem = format_problem(problem);
    return result;
  });
}

bool supports(const std::string& problem_text) try {
  return !explain(problem_text).chosen.empty();
} catch (const Error& error) {
  if (error.code() == ErrorCode::kUnsupported) return false;  // by every implementation alike
  throw;
}

}  // namespace flashtile
