// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/kernel_choice.hpp"
#include "cuda/jit/compiled_kernel.hpp"

namespace flashtile::cli {

/// The kernels that problems need on architectures, each once.
struct PackContent {
  std::vector<KernelSource> sources;
  std::vector<std::string>
      refusals;  ///< "PROBLEM on sm_89: REASON", the problems that nothing takes
};

PackContent kernels_of(const std::vector<std::string>& problems,
                       const std::vector<std::string>& archs);

/// Compiles them on `num_threads` threads (0: all CPUs) and writes the pack. Throws Error where one
/// does not compile or the file cannot be written.
std::vector<cuda::CompiledKernel> write_pack(const std::vector<KernelSource>& sources,
                                             const std::string& path, int num_threads);

}  // namespace flashtile::cli
