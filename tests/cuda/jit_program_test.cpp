// SPDX-License-Identifier: Apache-2.0
//
// The program's compile, explain --arch and info, without a GPU.
#include <cstdio>

#include "core/gpu_model.hpp"
#include "cuda/jit/kernel_pack.hpp"
#include "cuda/jit/nvrtc.hpp"
#include "cuda/jit_support.hpp"

namespace flashtile::cuda {
namespace {

constexpr const char* kProblem = "attention_fwd:b1:hq16:sq4096:d64:causal:bf16";

struct Outcome {
  int exit_code;
  std::string text;  ///< standard output and standard error
};

class JitProgram : public JitFolder {
 protected:
  Outcome run(const std::string& arguments, const std::string& settings = "") const {
    const std::string command = "env FLASHTILE_CACHE_DIR=" + path("cache") + " " + settings + " " +
                                FLASHTILE_CLI + " " + arguments + " 2>&1";
    FILE* pipe = ::popen(command.c_str(), "r");
    Outcome outcome{-1, ""};
    char buffer[4096];
    for (size_t count = 0; (count = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
      outcome.text.append(buffer, count);
    }
    const int status = ::pclose(pipe);
    outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    return outcome;
  }
  static bool has(const Outcome& outcome, const std::string& part) {
    return outcome.text.find(part) != std::string::npos;
  }
};

TEST_F(JitProgram, ExplainsForEveryArchitecture) {
  for (const std::string& arch : known_gpu_archs()) {
    const Outcome outcome = run("explain --arch " + arch + " " + kProblem);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
    EXPECT_TRUE(has(outcome, "arch:    " + arch)) << outcome.text;
    EXPECT_TRUE(has(outcome, "attention_fwd_avx2: runs on the CPU") ||
                has(outcome, "attention_fwd_scalar: runs on the CPU"))
        << outcome.text;
    EXPECT_TRUE(has(outcome, arch + ", grid ")) << outcome.text;
  }
  const Outcome two = run(std::string("explain --arch sm_80,sm_90 ") + kProblem);
  EXPECT_TRUE(has(two, " sm_80, grid ") && has(two, " sm_90a, grid ")) << two.text;
  const Outcome unknown = run(std::string("explain --arch sm_1 ") + kProblem);
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_TRUE(has(unknown, "arch is 'sm_1', expected one of sm_80")) << unknown.text;
  const Outcome none = run(std::string("explain ") + kProblem);
  EXPECT_FALSE(has(none, "arch:")) << none.text;
}

TEST_F(JitProgram, PackOfAProblemHoldsItsKernels) {
  if (Nvrtc::get() == nullptr) GTEST_SKIP() << Nvrtc::fault();
  const std::string one = std::string("compile --problem ") + kProblem;
  const Outcome outcome = run(one + " --arch sm_80,sm_90,sm_90a --verbose -o " + path("p"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_TRUE(has(outcome, "sm_80") && has(outcome, "sm_90a")) << outcome.text;
  const KernelPack pack(path("p"));
  EXPECT_TRUE(pack.is_for_this_library());
  EXPECT_EQ(pack.num_kernels() % 2, 0u) << "sm_90 is sm_90a: the same kernels once";
  EXPECT_GE(pack.num_kernels(), 2u);
  // Problems that differ in numbers alone need the same kernels.
  const Outcome same =
      run("compile --arch sm_80,sm_90a -o " + path("q") + " --problem " + kProblem +
          " --problem attention_fwd:b3:hq16:sq8192:d64:causal:bf16"
          ":softmax_scale=0.5");
  ASSERT_EQ(same.exit_code, 0) << same.text;
  EXPECT_EQ(KernelPack(path("q")).keys(), pack.keys());
  // A machine with the pack alone has all that the problem needs.
  const Outcome info = run("info", "FLASHTILE_NVRTC=/nowhere FLASHTILE_PACK=" + path("p"));
  EXPECT_TRUE(has(info, path("p") + ", " + std::to_string(pack.num_kernels()) + " kernels"))
      << info.text;
}

TEST_F(JitProgram, BadRequestsOfCompileGiveTwo) {
  const std::pair<std::string, std::string> kCases[] = {
      {"compile", "--arch"},
      {"compile --arch sm_81", "no architecture 'sm_81', but sm_80"},
      {"compile --arch sm_80 --op nonsense", "no op 'nonsense'"},
      {"compile --arch sm_80 --problem attention_fwd:what", "column 15"},
      {"compile --arch sm_80 --problem attention_fwd:f64", "attention_fwd:f64 on sm_80: "},
      {std::string("compile --arch sm_80 --problem ") + kProblem + " -o /nowhere/p", "/nowhere/p"},
  };
  for (const auto& [arguments, part] : kCases) {
    if (part == "/nowhere/p" && Nvrtc::get() == nullptr) continue;
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments << ": " << outcome.text;
    EXPECT_TRUE(has(outcome, part)) << arguments << ": " << outcome.text;
  }
}

TEST_F(JitProgram, WithoutNvrtcCompileSaysHowToGetIt) {
  const Outcome outcome =
      run(std::string("compile --arch sm_80 --problem ") + kProblem + " -o " + path("p"),
          "FLASHTILE_NVRTC=/nowhere/libnvrtc.so.13");
  EXPECT_EQ(outcome.exit_code, 2);
  for (const char* part :
       {"NVRTC is not there", "pip install", "FLASHTILE_NVRTC", "/nowhere/libnvrtc.so.13"}) {
    EXPECT_TRUE(has(outcome, part)) << part << " in: " << outcome.text;
  }
  EXPECT_FALSE(std::filesystem::exists(path("p")));
}

TEST_F(JitProgram, InfoShowsWhereThingsAre) {
  Outcome outcome = run("info");
  ASSERT_EQ(outcome.exit_code, 0);
  for (const char* row : {"\ndevices ", "\ncuda driver ", "\nnvrtc ", "\nkernel cache "}) {
    EXPECT_TRUE(has(outcome, row)) << row << " in: " << outcome.text;
  }
  EXPECT_TRUE(has(outcome, path("cache") + ", 0 kernels"));
  EXPECT_FALSE(std::filesystem::exists(path("cache"))) << "info makes nothing";
  EXPECT_TRUE(has(run("info", "FLASHTILE_CACHE_MB=0"), "off (FLASHTILE_CACHE_MB is 0)"));
  std::filesystem::create_directory(path("cache"));
  std::filesystem::permissions(path("cache"), std::filesystem::perms(0777));
  outcome = run("info", "FLASHTILE_PACK=" + path("nothing") + ":");
  EXPECT_TRUE(has(outcome, "in memory only: ") && has(outcome, "others may write to it"))
      << outcome.text;
  EXPECT_TRUE(has(outcome, path("nothing") + ": cannot be opened")) << outcome.text;
}

}  // namespace
}  // namespace flashtile::cuda
