// SPDX-License-Identifier: Apache-2.0
#include "support/problem_cases.hpp"

#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>

#include "device_tensors.hpp"
#include "op_runs.hpp"
#include "random_problem.hpp"
#include "support/attention_runs.hpp"

namespace flashtile::test {

void PrintTo(const ProblemParam& param, std::ostream* stream) { *stream << test_name(param.text); }

std::string test_name(std::string_view text) {
  std::string name;
  for (const char c : text) {
    const bool is_word = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (is_word) {
      name += c;
    } else if (!name.empty() && name.back() != '_') {
      name += '_';
    }
  }
  while (!name.empty() && name.back() == '_') name.pop_back();
  return name;
}

std::vector<ProblemParam> forward_only(const std::vector<std::string>& texts) {
  std::vector<ProblemParam> params;
  for (const std::string& text : texts) params.push_back({"attention_fwd:lse" + text});
  return params;
}

std::vector<ProblemParam> both_ways(const std::vector<std::string>& texts) {
  std::vector<ProblemParam> params = forward_only(texts);
  for (const std::string& text : texts) params.push_back({"attention_bwd" + text});
  return params;
}

cli::OwnedCall random_problem_call(std::string_view text, uint64_t seed) {
  cli::OwnedCall owned = cli::random_call(parse_problem(text), seed);
  cli::run_forward_of(owned.call, "reference", one_worker());
  return owned;
}

Context test_context() {
  const char* device = std::getenv("FLASHTILE_TEST_DEVICE");
  if (device == nullptr) return one_worker();
  Context context;
  context.device = cli::parse_device(device);
  return context;
}

std::vector<std::string> implementations_for(const OpCall& call) {
  const Context context = test_context();
  std::vector<std::string> names = call.spec().implementations(context.device.type);
  if (context.device.type == DeviceType::kCpu) return names;
  const Explanation explanation = cli::explain_on(call, context);
  std::string refusals;
  for (const Candidate& candidate : explanation.candidates) {
    if (candidate.refusal.empty()) continue;
    std::erase(names, candidate.implementation);
    refusals += candidate.implementation + ": " + candidate.refusal + "; ";
  }
  EXPECT_FALSE(names.empty()) << refusals;
  return names;
}

bool may_differ_in_last_bits(const std::string& name) {
  return name == "dq" && test_context().device.type != DeviceType::kCpu;
}

void expect_problem_conforms(const std::string& text, uint64_t seed) {
  const Context context = test_context();
  const cli::OwnedCall owned = random_problem_call(text, seed);
  const OpSpec& spec = owned.call.spec();
  std::string disagreement;
  const std::vector<cli::Expectation> expected =
      cli::reference_expectations(owned.call, context, &disagreement);
  EXPECT_EQ(disagreement, "") << text;
  for (const std::string& implementation : implementations_for(owned.call)) {
    const cli::OwnedCall own = cli::with_own_outputs(owned.call);
    cli::run_forward_of(own.call, cli::implementation_suffix(spec, implementation), context);
    const cli::RunResult result = cli::run_forced(own.call, implementation, context);
    EXPECT_EQ(result.text, "") << text << "@" << implementation;
    if (!result.text.empty()) continue;
    const std::vector<cli::Verdict> verdicts =
        cli::judge(own.call, expected, cli::NanRule::kRefused);
    EXPECT_EQ(cli::fault_text(verdicts), "") << text << "@" << implementation;
  }
}

}  // namespace flashtile::test
