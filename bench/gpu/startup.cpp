// SPDX-License-Identifier: Apache-2.0
//
// What it takes until the first result, as JSON lines; exit code 1 where it takes too long.
//   startup compile [ARCH] [PROBLEM ...]   the compiler's time for each kernel (no GPU needed)
//   startup launch [PROBLEM]               the first call in this process beside the second one
// Run `launch` twice with the same FLASHTILE_CACHE_DIR: the second process finds its kernel there.
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/problem_text.hpp"
#include "cuda/jit/kernel_store.hpp"
#include "cuda/jit/nvrtc.hpp"
#include "cuda/runtime/current.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/runtime/memory.hpp"
#include "flashtile/error.hpp"

namespace {

using namespace flashtile;
using Clock = std::chrono::steady_clock;

constexpr double kCompileLimit = 2000, kHopperBackwardLimit = 4000, kAddedLimit = 20;  // ms

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Problems whose kernels are the longest texts: large head dims, everything at once.
std::vector<std::string> default_problems() {
  std::vector<std::string> texts;
  for (const char* op : {"attention_fwd", "attention_bwd"}) {
    for (const char* rest :
         {":b4:hq16:sq1024:d64:causal:bf16", ":b4:hq16:sq1024:d128:causal:bf16",
          ":b4:hq16:sq1024:d256:causal:bf16", ":b4:hq16:sq1024:d128:f16",
          ":b4:hq16:sq1024:d512:bf16", ":b4:hq16:sq1024:d128:f32", ":b4:hq16:sq1024:d256:f32",
          ":b4:hq16:hkv4:sq1024:d128:window_left=100:softcap=9:dropout_p=0.1:sink:bf16",
          ":b4:hq16:sq1024:d256:alibi_slopes[hq]:bias[1,hq,sq,sk]:causal:bf16",
          ":b4:hq16:sq1024:d128:score='score + t[head, q_idx - k_idx + 1023]':aux.t[hq,2047]:"
          "mask='s[q_idx] == s[k_idx]':aux.s.i32[sk]:causal:bf16"}) {
      texts.push_back(std::string(op) + rest);
    }
  }
  texts.emplace_back("attention_fwd:b8:hq32:hkv8:sq1:sk8192:d128:seqused_k:block_table:ps16:bf16");
  return texts;
}

int compile(const std::string& arch, const std::vector<std::string>& problems) {
  const cuda::Nvrtc* nvrtc = cuda::Nvrtc::get();
  if (nvrtc == nullptr) throw Error(ErrorCode::kUnsupported, cuda::Nvrtc::fault());
  Context context;
  context.arch = arch;
  std::set<cuda::Digest> keys;
  bool is_slow = false;
  for (const std::string& problem : problems) {
    for (const KernelChoice& kernel : make_call(parse_problem(problem)).kernels(context)) {
      const cuda::Program program = cuda::program_of(kernel.source);
      if (!keys.insert(cuda::key_of(program)).second) continue;
      const bool is_wide = arch == "sm_90a" && kernel.source.stem.starts_with("attention_bwd");
      const double limit = is_wide ? kHopperBackwardLimit : kCompileLimit;
      const auto start = Clock::now();
      const std::clock_t cpu_start = std::clock();
      const cuda::CompiledKernel compiled = nvrtc->compile(program);
      const double cpu = 1e3 * static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
      // Processor time: what other programs take of a machine is not the compiler's.
      is_slow = is_slow || cpu > limit;
      std::printf(
          "{\"what\": \"compile\", \"kernel\": \"%s\", \"arch\": \"%s\", \"ms\": %.0f, "
          "\"cpu_ms\": %.0f, \"limit_ms\": %.0f, \"nvrtc\": \"%s\", \"problem\": \"%s\"}\n",
          kernel.source.stem.c_str(), arch.c_str(), milliseconds_since(start), cpu, limit,
          cuda::cuda_version_text(nvrtc->version()).c_str(), problem.c_str());
    }
  }
  return is_slow ? 1 : 0;
}

/// A call whose tensors lie on the device.
struct Call {
  explicit Call(const std::string& problem, const Context& on)
      : call(make_call(parse_problem(problem))), context(on) {
    for (const std::string& name : call.tensor_names()) {
      TensorView tensor = call.tensor(name);
      const auto bytes = static_cast<size_t>(tensor.numel() * dtype_bytes(tensor.dtype));
      memory.push_back(std::make_unique<cuda::DeviceMemory>(bytes, context));
      memory.back()->fill(0);
      tensor.data = memory.back()->data();
      tensor.device = context.device;
      call.set_tensor(name, tensor);
    }
    memory.push_back(std::make_unique<cuda::DeviceMemory>(size_t{64} << 20, context));
    context.workspace = memory.back()->data();
    context.workspace_bytes = memory.back()->bytes();
  }

  /// Until the device has done it.
  double run() const {
    const auto start = Clock::now();
    call.run(context);
    cuda::synchronize(context);
    return milliseconds_since(start);
  }

  OpCall call;
  Context context;
  std::vector<std::unique_ptr<cuda::DeviceMemory>> memory;
};

int launch(const std::string& problem, Clock::time_point process_start) {
  Context context;
  context.device = {DeviceType::kCuda, 0};
  const auto context_start = Clock::now();
  const Call call(problem, context);  // the CUDA context is there from here on
  const double context_ms = milliseconds_since(context_start);
  const double first = call.run();
  const double second = call.run();
  const cuda::KernelStore::Counts counts = cuda::KernelStore::of_process().counts();
  const bool is_found = counts.compiled == 0;
  std::printf(
      "{\"what\": \"first launch\", \"problem\": \"%s\", \"device\": \"%s\", \"context_ms\": %.1f, "
      "\"first_ms\": %.2f, \"second_ms\": %.3f, \"added_ms\": %.2f, \"limit_ms\": %.0f, "
      "\"compiled\": %lld, \"from_disk\": %lld, \"process_ms\": %.0f}\n",
      problem.c_str(), cuda::device_info(0).model.name.c_str(), context_ms, first, second,
      first - second, kAddedLimit, static_cast<long long>(counts.compiled),
      static_cast<long long>(counts.from_disk), milliseconds_since(process_start));
  return is_found && first - second > kAddedLimit ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto start = Clock::now();
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string mode = words.empty() ? "" : words[0];
  try {
    if (mode == "compile") {
      std::vector<std::string> problems(words.begin() + (words.size() > 1 ? 2 : 1), words.end());
      if (problems.empty()) problems = default_problems();
      return compile(words.size() > 1 ? words[1] : "sm_90a", problems);
    }
    if (mode == "launch") {
      return launch(words.size() > 1 ? words[1] : "attention_fwd:b4:hq16:sq1024:d128:causal:bf16",
                    start);
    }
  } catch (const flashtile::Error& error) {
    std::fprintf(stderr, "startup: %s\n", error.what());
    return 2;
  }
  std::fprintf(stderr, "startup compile [ARCH] [PROBLEM ...] | startup launch [PROBLEM]\n");
  return 2;
}
