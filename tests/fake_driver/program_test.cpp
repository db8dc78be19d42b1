// SPDX-License-Identifier: Apache-2.0
//
// The program's calls on a device that computes nothing: what goes there and comes back, how often
// it runs, and what is said of it.
#include <dlfcn.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>

#include "compile_kernels.hpp"
#include "cuda/jit/kernel_store.hpp"
#include "cuda/jit/nvrtc.hpp"
#include "device_rotation.hpp"
#include "device_tensors.hpp"
#include "fake_driver_support.hpp"
#include "op_runs.hpp"
#include "random_problem.hpp"

namespace flashtile::cli {
namespace {

using fake::on_device;

constexpr const char* kProblem = "attention_fwd:b1:hq2:sq100:d64:bf16:lse";

class FakeProgram : public fake::FakeDriver {
 protected:
  void SetUp() override {
    FakeDriver::SetUp();
    if (cuda::Nvrtc::get() == nullptr) GTEST_SKIP() << cuda::Nvrtc::fault();
  }

  struct Outcome {
    int exit_code = -1;
    std::string text;
  };
  /// The program in a process of its own, with the fake driver.
  static Outcome run(const std::string& arguments) {
    Dl_info library{};
    ::dladdr(reinterpret_cast<void*>(fake::fake_cuda().create_context), &library);
    const std::string folder = std::filesystem::path(library.dli_fname).parent_path();
    const std::string command =
        "LD_LIBRARY_PATH=" + folder + " " + FLASHTILE_CLI + " " + arguments + " 2>&1";
    FILE* pipe = ::popen(command.c_str(), "r");
    Outcome outcome;
    char buffer[4096];
    for (size_t count = 0; (count = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
      outcome.text.append(buffer, count);
    }
    const int status = ::pclose(pipe);
    if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
    return outcome;
  }
};

TEST_F(FakeProgram, TensorsGoToTheDeviceAndResultsComeBack) {
  const OwnedCall host = random_call(parse_problem(kProblem), 1);
  // Rows from the last to the first: element 0 is not where the memory begins.
  TensorView q = host.call.tensor("q");
  q.data = static_cast<char*>(q.data) + (q.shape[1] - 1) * q.strides[1] * 2;
  q.strides[1] = -q.strides[1];
  OpCall call = host.call;
  call.set_tensor("q", q);
  const DeviceCall device(call, on_device(0));
  const TensorView there = device.call().tensor("q");
  EXPECT_NE(there.data, q.data);
  EXPECT_EQ(there.strides, q.strides);
  EXPECT_EQ(to_numbers(there), to_numbers(q));

  // What stands for the kernel: it fills the device's out, and nothing else.
  const TensorView out = device.call().tensor("out");
  std::memset(out.data, 0, static_cast<size_t>(out.numel() * 2));
  std::memset(device.call().tensor("k").data, 0, 8);
  const double first_k = number_at(call.tensor("k"), 0);
  device.download();
  EXPECT_EQ(to_numbers(call.tensor("out")), std::vector<double>(100 * 2 * 64, 0.0));
  EXPECT_EQ(number_at(call.tensor("k"), 0), first_k);
}

TEST_F(FakeProgram, CopiesThatAreTimedLieFurtherApartThanTheCache) {
  const OwnedCall host = random_call(parse_problem(kProblem), 1);
  Context context = on_device(0);
  context.implementation = "attention_fwd_portable";
  DeviceRotation rotation(host.call, context, std::nullopt);
  EXPECT_EQ(rotation.num_copies(), 256);  // tiny ones: as many as are allowed
  state_.launches.clear();
  EXPECT_EQ(rotation.time_runs(3), 1.5);  // of the fake clock, one step between two events
  EXPECT_EQ(rotation.time_runs(1), 1.5);
  std::set<const void*> queries;
  for (const fake::Launch& launch : state_.launches) {
    queries.insert(reinterpret_cast<const void*>(launch.first_argument));
  }
  EXPECT_EQ(state_.launches.size(), 4u);
  EXPECT_EQ(queries.size(), 4u);
  EXPECT_EQ(rotation.clock_mhz(), std::nullopt);
}

TEST_F(FakeProgram, KernelsOfManyCallsAreCompiledBeforeTheyRun) {
  const OwnedCall backward = random_call(parse_problem("attention_bwd:b1:hq2:sq100:d64:bf16"), 1);
  compile_for({{backward.call, {"attention_bwd_portable", "attention_bwd_reference"}}},
              on_device(0));
  const int64_t compiled = cuda::KernelStore::of_process().counts().compiled;
  EXPECT_GE(compiled, 3);  // the forward, and the backward's own
  EXPECT_TRUE(state_.launches.empty());
  run_forward_of(backward.call, "portable", on_device(0));
  EXPECT_EQ(run_forced(backward.call, "attention_bwd_portable", on_device(0)).text, "");
  EXPECT_FALSE(state_.launches.empty());
  EXPECT_EQ(cuda::KernelStore::of_process().counts().compiled, compiled);
}

TEST_F(FakeProgram, AttendRunsOnADevice) {
  const std::string attend = "attend " FLASHTILE_SOURCE_DIR "/examples/minilm_layer.safetensors ";
  const Outcome outcome = run(attend + "--device cuda --repeat 3");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_NE(outcome.text.find("attention_fwd_portable, cuda:0, 1.5 ms"), std::string::npos)
      << outcome.text;
  EXPECT_NE(outcome.text.find("of the device"), std::string::npos) << outcome.text;
  // Nothing was computed, and nothing else may say that it was.
  EXPECT_EQ(run(attend + "--device cuda --check").exit_code, 1);
  EXPECT_EQ(run(attend + "--device cuda --impl plain").exit_code, 2);
  EXPECT_EQ(run(attend + "--device cuda:7").exit_code, 2);
}

TEST_F(FakeProgram, BenchGivesNoFigureForWrongResults) {
  const Outcome outcome = run(std::string("bench --json --device cuda --seconds 0.01 ") + kProblem);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.text.find("\"error\""), std::string::npos) << outcome.text;
  EXPECT_EQ(outcome.text.find("\"ms\""), std::string::npos) << outcome.text;
  EXPECT_NE(outcome.text.find("\"device\":\"Fake H200\""), std::string::npos) << outcome.text;
}

}  // namespace
}  // namespace flashtile::cli
