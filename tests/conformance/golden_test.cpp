// SPDX-License-Identifier: Apache-2.0
//
// Every golden file on every implementation. The files are worked out without the library, so they
// judge the reference too, which judges everything else.
#include <gtest/gtest.h>

#include <filesystem>

#include "golden_case.hpp"
#include "op_runs.hpp"
#include "support/attention_runs.hpp"
#include "support/problem_cases.hpp"

namespace flashtile::test {
namespace {

constexpr const char* kFolder = FLASHTILE_SOURCE_DIR "/tests/golden/attention";
constexpr const char* kLinearFolder = FLASHTILE_SOURCE_DIR "/tests/golden/linear";

void expect_every_implementation_passes(const std::string& path) {
  const cli::CheckCase golden = cli::read_golden_case(path);
  ASSERT_EQ(golden.unsupported, "");
  ASSERT_FALSE(golden.steps.empty());
  for (const cli::CheckStep& step : golden.steps) {
    const OpSpec& spec = step.owned.call.spec();
    ASSERT_FALSE(step.expected.empty());
    for (const std::string& implementation : implementations_for(step.owned.call)) {
      const cli::OwnedCall own = cli::with_own_outputs(step.owned.call);
      const std::string_view suffix = cli::implementation_suffix(spec, implementation);
      cli::run_forward_of(own.call, suffix, test_context());
      const cli::RunResult result = cli::run_forced(own.call, implementation, test_context());
      EXPECT_EQ(result.text, "") << implementation;
      if (!result.text.empty()) continue;
      EXPECT_EQ(cli::fault_text(cli::judge(own.call, step.expected, golden.nan_rule)), "")
          << implementation;
    }
  }
}

class AttentionGolden : public testing::TestWithParam<std::string> {};

TEST_P(AttentionGolden, EveryImplementationPasses) {
  expect_every_implementation_passes(GetParam());
}

/// These take a millisecond each.
TEST(LinearGolden, EveryImplementationPasses) {
  for (const std::string& path : cli::golden_paths(kLinearFolder)) {
    SCOPED_TRACE(path);
    expect_every_implementation_passes(path);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, AttentionGolden, testing::ValuesIn(cli::golden_paths(kFolder)),
                         [](const testing::TestParamInfo<std::string>& test) {
                           return test_name(std::filesystem::path(test.param).stem().string());
                         });

}  // namespace
}  // namespace flashtile::test
