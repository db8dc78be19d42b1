// SPDX-License-Identifier: Apache-2.0
//
// Many kernels at once: compiled side by side instead of each where it is first needed.
#pragma once

#include <cstddef>
#include <functional>
#include <set>
#include <span>
#include <vector>

#include "core/kernel_choice.hpp"
#include "core/op_spec.hpp"
#include "cuda/jit/program.hpp"

namespace flashtile::cli {

/// Calls work(i) for each i below `count` on `num_threads` threads (0: all CPUs). After a call that
/// throws no other begins, and its exception comes out here.
void in_parallel(size_t count, int num_threads, const std::function<void(size_t)>& work);

/// Sources of kernels, each once.
class KernelSources {
 public:
  void add(std::span<const KernelChoice> kernels);
  const std::vector<KernelSource>& list() const { return list_; }

 private:
  std::vector<KernelSource> list_;
  std::set<cuda::Digest> keys_;
};

/// A call, on the host, that is going to run on a GPU by some implementations in turn.
struct PlannedCall {
  OpCall call;
  std::vector<std::string> implementations;
};

/// Puts the kernels that the calls need on the context's GPU into the process's store; for backward
/// calls also those of their forward calls. What is refused or does not compile is left to the call
/// itself.
void compile_for(const std::vector<PlannedCall>& calls, const Context& context);

}  // namespace flashtile::cli
