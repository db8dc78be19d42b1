// SPDX-License-Identifier: Apache-2.0
#include "compile_pack.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "core/problem_text.hpp"
#include "cpu/cpu_info.hpp"
#include "cuda/jit/kernel_pack.hpp"
#include "cuda/jit/kernel_store.hpp"
#include "flashtile/error.hpp"
#include "terminal.hpp"

namespace flashtile::cli {

PackContent kernels_of(const std::vector<std::string>& problems,
                       const std::vector<std::string>& archs) {
  PackContent content;
  std::set<cuda::Digest> keys;
  for (const std::string& text : problems) {
    const ProblemText problem = parse_problem(text);
    const OpCall call = make_call(problem);
    for (const std::string& arch : archs) {
      Context context;
      context.arch = arch;
      context.implementation = problem.implementation;
      try {
        for (const KernelChoice& kernel : call.kernels(context)) {
          const bool is_new = keys.insert(cuda::key_of(cuda::program_of(kernel.source))).second;
          if (is_new) content.sources.push_back(kernel.source);
        }
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kUnsupported) throw;
        content.refusals.push_back(text + " on " + arch + ": " + error.what());
      }
    }
  }
  return content;
}

std::vector<cuda::CompiledKernel> write_pack(const std::vector<KernelSource>& sources,
                                             const std::string& path, int num_threads) {
  std::vector<std::pair<cuda::Digest, cuda::CompiledKernel>> entries(sources.size());
  std::atomic<size_t> next{0};
  std::mutex mutex;  // of the three that follow
  Progress progress;
  size_t num_done = 0;
  std::exception_ptr error;
  const auto work = [&] {
    for (size_t i = next++; i < sources.size(); i = next++) {
      try {
        const cuda::Program program = cuda::program_of(sources[i]);
        entries[i] = {cuda::key_of(program), *cuda::KernelStore::of_process().get(program)};
        const std::lock_guard<std::mutex> lock(mutex);
        progress.show(++num_done, sources.size(), program.entry + " " + program.arch);
      } catch (...) {
        next = sources.size();
        const std::lock_guard<std::mutex> lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
  };
  const int limit = num_threads > 0 ? num_threads : cpu::cpu_info().num_cpus;
  std::vector<std::thread> threads;
  for (int i = 1; i < std::min<int>(limit, static_cast<int>(sources.size())); ++i) {
    threads.emplace_back(work);
  }
  work();
  for (std::thread& thread : threads) thread.join();
  progress.clear();
  if (error) std::rethrow_exception(error);
  std::vector<cuda::CompiledKernel> kernels;
  for (const auto& entry : entries) kernels.push_back(entry.second);
  cuda::write_kernel_pack(path, std::move(entries));
  return kernels;
}

}  // namespace flashtile::cli
