// SPDX-License-Identifier: Apache-2.0
#include "compile_pack.hpp"

#include <mutex>
#include <utility>

#include "compile_kernels.hpp"
#include "core/problem_text.hpp"
#include "cuda/jit/kernel_pack.hpp"
#include "cuda/jit/kernel_store.hpp"
#include "flashtile/error.hpp"
#include "terminal.hpp"

namespace flashtile::cli {

PackContent kernels_of(const std::vector<std::string>& problems,
                       const std::vector<std::string>& archs) {
  PackContent content;
  KernelSources sources;
  for (const std::string& text : problems) {
    const ProblemText problem = parse_problem(text);
    const OpCall call = make_call(problem);
    for (const std::string& arch : archs) {
      Context context;
      context.arch = arch;
      context.implementation = problem.implementation;
      try {
        sources.add(call.kernels(context));
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kUnsupported) throw;
        content.refusals.push_back(text + " on " + arch + ": " + error.what());
      }
    }
  }
  content.sources = sources.list();
  return content;
}

std::vector<cuda::CompiledKernel> write_pack(const std::vector<KernelSource>& sources,
                                             const std::string& path, int num_threads) {
  std::vector<std::pair<cuda::Digest, cuda::CompiledKernel>> entries(sources.size());
  std::mutex mutex;  // of the two that follow
  Progress progress;
  size_t num_done = 0;
  in_parallel(sources.size(), num_threads, [&](size_t i) {
    const cuda::Program program = cuda::program_of(sources[i]);
    entries[i] = {cuda::key_of(program), *cuda::KernelStore::of_process().get(program)};
    const std::lock_guard<std::mutex> lock(mutex);
    progress.show(++num_done, sources.size(), program.entry + " " + program.arch);
  });
  progress.clear();
  std::vector<cuda::CompiledKernel> kernels;
  for (const auto& entry : entries) kernels.push_back(entry.second);
  cuda::write_kernel_pack(path, std::move(entries));
  return kernels;
}

}  // namespace flashtile::cli
