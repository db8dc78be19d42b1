// SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/kernel.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "core/memory_errors.hpp"
#include "core/problem_text.hpp"
#include "cuda/jit/kernel_store.hpp"
#include "cuda/runtime/current.hpp"
#include "flashtile/error.hpp"
#include "flashtile/gpu.hpp"

namespace flashtile {
namespace cuda {
namespace {

constexpr int32_t kOldestComputeCapability = 80;

/// While it lives, this thread may do what a stream capture elsewhere forbids: loading a module.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const driver::Api& api) : api_(api) {
    api_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { api_.cuThreadExchangeStreamCaptureMode(&mode_); }

 private:
  const driver::Api& api_;
  int mode_ = driver::kCaptureRelaxed;
};

int attribute_of(const driver::Api& api, driver::FunctionHandle handle,
                 driver::FunctionAttribute attribute) {
  int value = 0;
  return api.cuFuncGetAttribute(&value, attribute, handle) == driver::kSuccess ? value : 0;
}

/// The driver's answer; where it is good, `function` is filled in.
driver::Result load(const driver::Api& api, const CompiledKernel& kernel, Function& function) {
  driver::ModuleHandle module = nullptr;
  driver::Result result = api.cuModuleLoadData(&module, kernel.cubin.data());
  if (result != driver::kSuccess) return result;
  result = api.cuModuleGetFunction(&function.handle, module, kernel.entry.c_str());
  // A driver that loads lazily would do it in the first launch, maybe inside a capture.
  if (result == driver::kSuccess && api.cuFuncLoad != nullptr) {
    result = api.cuFuncLoad(function.handle);
  }
  if (result != driver::kSuccess) {
    api.cuModuleUnload(module);
    return result;
  }
  FunctionAttributes& attributes = function.attributes;
  attributes.num_registers = attribute_of(api, function.handle, driver::kNumRegisters);
  attributes.local_bytes = attribute_of(api, function.handle, driver::kLocalBytes);
  attributes.static_shared_bytes = attribute_of(api, function.handle, driver::kStaticSharedBytes);
  attributes.max_threads = attribute_of(api, function.handle, driver::kMaxThreadsPerCta);
  return driver::kSuccess;
}

Function load_kernel(const CurrentContext& current, const Program& program,
                     const CompiledKernel& kernel, int32_t device_idx) {
  const RelaxedCapture relaxed(current.api());
  Function function;
  function.stem = program.entry;
  driver::Result result = load(current.api(), kernel, function);
  if (result == driver::kInvalidImage || result == driver::kNoBinaryForGpu) {
    // Found in a pack or a cache, and not for this driver after all.
    result = load(current.api(), *KernelStore::of_process().remake(program), function);
  }
  current.driver().check(result,
                         program.entry + ": loading its machine code (" + program.arch + ")");
  const int64_t shared_bytes = gpu_model({DeviceType::kCuda, device_idx}).shared_bytes_per_cta -
                               function.attributes.static_shared_bytes;
  current.driver().check(
      current.api().cuFuncSetAttribute(function.handle, driver::kMaxDynamicSharedBytes,
                                       static_cast<int>(shared_bytes)),
      program.entry + ": allowing " + std::to_string(shared_bytes) + " bytes of shared memory");
  return function;
}

struct SourceHash {
  size_t operator()(const KernelSource& source) const {
    const std::hash<std::string_view> hash;
    return hash(source.stem) * 31 + hash(source.config) * 7 + hash(source.arch);
  }
};

/// The loaded kernels of one CUDA context.
struct LoadedKernels {
  std::shared_mutex mutex;
  std::unordered_map<KernelSource, std::unique_ptr<const Function>, SourceHash> functions;
  std::mutex loading;  ///< held by the thread that loads one
};

LoadedKernels& loaded_kernels(uint64_t context_id) {
  static std::shared_mutex mutex;
  static auto* const contexts = new std::map<uint64_t, std::unique_ptr<LoadedKernels>>();
  {
    const std::shared_lock<std::shared_mutex> lock(mutex);
    const auto found = contexts->find(context_id);
    if (found != contexts->end()) return *found->second;
  }
  const std::unique_lock<std::shared_mutex> lock(mutex);
  std::unique_ptr<LoadedKernels>& kernels = (*contexts)[context_id];
  if (kernels == nullptr) kernels = std::make_unique<LoadedKernels>();
  return *kernels;
}

const Function* find(LoadedKernels& kernels, const KernelSource& source) {
  const std::shared_lock<std::shared_mutex> lock(kernels.mutex);
  const auto found = kernels.functions.find(source);
  return found == kernels.functions.end() ? nullptr : found->second.get();
}

}  // namespace

const Function& get_kernel(const KernelSource& source, const Context& context) {
  const CurrentContext current(context);
  LoadedKernels& kernels = loaded_kernels(current.id());
  if (const Function* found = find(kernels, source)) return *found;
  // Outside of any lock but the store's own, which makes each kernel once: it takes its time.
  const Program program = program_of(source);
  const auto compiled = KernelStore::of_process().get(program);
  const std::lock_guard<std::mutex> loading(kernels.loading);
  if (const Function* found = find(kernels, source)) return *found;
  auto function = std::make_unique<const Function>(
      load_kernel(current, program, *compiled, context.device.index));
  const std::unique_lock<std::shared_mutex> lock(kernels.mutex);
  return *kernels.functions.try_emplace(source, std::move(function)).first->second;
}

std::string cannot_run(const GpuModel& gpu) {
  if (!gpu.fault.empty()) return gpu.fault;
  if (gpu.compute_capability < kOldestComputeCapability) {
    return gpu.name + " has compute capability " + std::to_string(gpu.compute_capability / 10) +
           "." + std::to_string(gpu.compute_capability % 10) + ", expected 8.0 or later";
  }
  return gpu.is_present ? KernelStore::of_process().fault() : std::string();
}

}  // namespace cuda

void load_kernels(std::span<const KernelChoice> kernels, const Context& context) {
  for (const KernelChoice& kernel : kernels) cuda::get_kernel(kernel.source, context);
}

void warmup(const std::string& problem_text, const Context& context) {
  static const Error no_memory = out_of_memory("warmup");
  with_memory_errors(no_memory, [&] {
    const ProblemText problem = parse_problem(problem_text);
    Context named = context;
    if (!problem.implementation.empty()) named.implementation = problem.implementation;
    load_kernels(make_call(problem).kernels(named), named);
  });
}

}  // namespace flashtile
