// SPDX-License-Identifier: Apache-2.0
//
// Memory beyond the caller's tensors grows with the length, not with its square: the peak of a
// child process that makes one call, less the peak of one that makes none.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "op_runs.hpp"
#include "random_problem.hpp"
#include "support/problem_cases.hpp"

namespace flashtile::test {
namespace {

/// Peak resident kilobytes of a child that makes the tensors and, if asked, the call; -1 where it
/// failed.
int64_t peak_kilobytes(const std::string& problem, bool makes_call) {
  const pid_t child = fork();
  if (child == 0) {
    const cli::OwnedCall owned = cli::random_call(parse_problem(problem), 1);
    for (const char* name : {"out", "lse"}) {  // stand-ins for the forward's results
      if (!cli::is_forward_result(owned.call.spec(), name)) continue;
      const TensorView tensor = owned.call.tensor(name);
      cli::from_numbers(std::vector<double>(static_cast<size_t>(tensor.numel()), 9.0), tensor);
    }
    Context context;
    context.max_workers = 2;
    const std::string best = owned.call.spec().implementations().front();
    const bool is_well = !makes_call || cli::run_forced(owned.call, best, context).text.empty();
    _exit(is_well ? 0 : 1);
  }
  int status = -1;
  rusage usage{};
  if (child < 0 || wait4(child, &status, 0, &usage) != child) return -1;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? usage.ru_maxrss : -1;
}

/// What one call needs besides its tensors.
int64_t extra_kilobytes(const std::string& problem) {
  const int64_t with = peak_kilobytes(problem, /*makes_call=*/true);
  const int64_t without = peak_kilobytes(problem, /*makes_call=*/false);
  EXPECT_GT(with, 0) << problem;
  EXPECT_GT(without, 0) << problem;
  return with - without;
}

class MemoryGrowthFull : public testing::TestWithParam<std::string> {};

TEST_P(MemoryGrowthFull, IsLinearInTheLength) {
  for (const char* op : {"attention_fwd:lse", "attention_bwd"}) {
    const std::string problem = op + GetParam();
    const int64_t at_8k = extra_kilobytes(problem + ":sq8192");
    const int64_t at_16k = extra_kilobytes(problem + ":sq16384");
    RecordProperty(std::string(op).substr(0, 13) + "_8k", std::to_string(at_8k));
    RecordProperty(std::string(op).substr(0, 13) + "_16k", std::to_string(at_16k));
    // A bit for each pair would be 8 and 32 MB.
    EXPECT_LT(at_16k, 24 * 1024) << problem << ": " << at_8k << " at 8k";
    EXPECT_LT(at_16k - at_8k, 12 * 1024) << problem << ": " << at_8k << " at 8k";
  }
}

/// 16k and 64k tokens, within what a workspace may hold (see workspace_test.cpp) and a little for
/// pages of code and stacks. A bit for each pair would be 32 and 512 MB.
TEST(LongMemoryGrowthFull, IsLinearUpToManyTokens) {
  constexpr int64_t kHeadDim = 16, kWorkers = 2, kElsewhere = 3 * 1024;
  for (const bool is_backward : {false, true}) {
    const std::string problem = std::string(is_backward ? "attention_bwd" : "attention_fwd:lse") +
                                ":b1:hq1:d16:causal:bf16";
    const auto limit = [&](int64_t seqlen) {
      const int64_t packed = 2 * seqlen * kHeadDim * 4;
      const int64_t partials = is_backward ? 4 * seqlen * kHeadDim * 4 : 0;
      return 1024 + kElsewhere + kWorkers * (2 * packed + partials) / 1024;
    };
    const int64_t at_16k = extra_kilobytes(problem + ":sq16384");
    const int64_t at_64k = extra_kilobytes(problem + ":sq65536");
    EXPECT_LT(at_16k, limit(16384)) << problem;
    EXPECT_LT(at_64k, limit(65536)) << problem;
  }
}

const std::string kOptions[] = {
    ":b1:hq1:d16:bf16",
    ":b1:hq1:d16:causal",
    ":b1:hq1:d16:window_left=4000:window_right=4000",
    ":b1:hq1:d16:attention_chunk=5000",
    ":b1:hq1:d16:softcap=20",
    ":b1:hq1:d16:alibi_slopes[hq]:sink",
    ":b1:hq1:d16:dropout_p=0.1",
    ":b1:hq1:d16:bias[1,1,1,sk]",
    ":b1:hq1:d16:mask='k_idx % 3 != 1 && k_idx <= q_idx'",
    ":b1:hq1:d16:mask='doc[q_idx] == doc[k_idx]':aux.doc.i32[sk]",
    ":b1:hq1:d16:causal:score='score + c[k_idx] * r[q_idx]':aux.c[sk]:aux.r[sq]",
    ":b1:hq1:d16:block_rows=128:block_cols=128:block_counts[1,1,m]:block_indices[1,1,m,n]",
};

INSTANTIATE_TEST_SUITE_P(Options, MemoryGrowthFull, testing::ValuesIn(kOptions),
                         [](const testing::TestParamInfo<std::string>& test) {
                           return test_name(test.param);
                         });

}  // namespace
}  // namespace flashtile::test
