// SPDX-License-Identifier: Apache-2.0
#include "compile_kernels.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "cpu/cpu_info.hpp"
#include "cuda/jit/kernel_store.hpp"
#include "device_tensors.hpp"
#include "flashtile/error.hpp"
#include "op_runs.hpp"
#include "terminal.hpp"

namespace flashtile::cli {
namespace {

/// The kernels of a call by an implementation; none where it is refused.
std::vector<KernelChoice> kernels_by(const OpCall& call, const std::string& implementation,
                                     const Context& context) {
  Context forced = context;
  forced.implementation = implementation;
  try {
    return call.kernels(forced);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

void in_parallel(size_t count, int num_threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        next = count;
        const std::lock_guard<std::mutex> lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
  };
  const auto limit = static_cast<size_t>(num_threads > 0 ? num_threads : cpu::cpu_info().num_cpus);
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min(limit, count); ++i) threads.emplace_back(run);
  run();
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

void KernelSources::add(std::span<const KernelChoice> kernels) {
  for (const KernelChoice& kernel : kernels) {
    const bool is_new = keys_.insert(cuda::key_of(cuda::program_of(kernel.source))).second;
    if (is_new) list_.push_back(kernel.source);
  }
}

void compile_for(const std::vector<PlannedCall>& calls, const Context& context) {
  KernelSources sources;
  for (const PlannedCall& planned : calls) {
    const OpCall call = planned_for_device(planned.call, context);
    const OpSpec* forward = forward_of(call.spec());
    for (const std::string& implementation : planned.implementations) {
      sources.add(kernels_by(call, implementation, context));
      if (forward == nullptr) continue;
      const std::string_view suffix = implementation_suffix(call.spec(), implementation);
      sources.add(kernels_by(forward_call(call),
                             std::string(forward->name) + "_" + std::string(suffix), context));
    }
  }
  Progress progress;
  std::mutex mutex;
  size_t num_done = 0;
  const std::vector<KernelSource>& list = sources.list();
  in_parallel(list.size(), 0, [&](size_t i) {
    try {
      cuda::KernelStore::of_process().get(cuda::program_of(list[i]));
    } catch (const Error&) {
      // The call that needs it says so.
    }
    const std::lock_guard<std::mutex> lock(mutex);
    progress.show(++num_done, list.size(), "compiling " + list[i].stem);
  });
}

}  // namespace flashtile::cli
