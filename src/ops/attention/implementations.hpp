// SPDX-License-Identifier: Apache-2.0
//
// The life of a call, behind the public functions: validate -> problem -> select -> plan -> launch.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/problem_text.hpp"
#include "core/registry.hpp"
#include "core/validate.hpp"
#include "ops/attention/args.hpp"
#include "ops/attention/problem.hpp"

namespace flashtile {

using AttentionImplementation = Implementation<AttentionProblem, AttentionPlan, AttentionArgs>;

/// Implementations of this machine, best first; the reference is the last.
std::span<const AttentionImplementation> attention_implementations(bool is_backward);

/// The CPU backend's implementations that this machine can run, best first (src/cpu/registry.cpp).
std::vector<AttentionImplementation> cpu_attention_implementations(bool is_backward);

/// The CUDA backend's implementations, best first (src/cuda/registry.cpp). They are listed on every
/// machine; what a machine lacks is their refusal.
std::vector<AttentionImplementation> cuda_attention_implementations(bool is_backward);

/// Names of those for tensors of a device.
std::vector<std::string> attention_implementation_names(bool is_backward,
                                                        DeviceType device = DeviceType::kCpu);

void run_attention(const AttentionArgs& args, bool is_backward, const Context& context);
/// Explanation::workspace_bytes of a call that is to run; throws where no implementation takes it.
int64_t attention_workspace_bytes(const AttentionArgs& args, bool is_backward,
                                  const Context& context);
Explanation explain_attention(const AttentionArgs& args, bool is_backward, const Context& context);

/// The GPU kernels that the call would launch; none on the CPU.
std::vector<KernelChoice> attention_kernels(const AttentionArgs& args, bool is_backward,
                                            const Context& context);

/// Sizes that a problem text implies: totals from cu_seqlens lists, pages from page_size, ...
void derive_attention_sizes(const ProblemText& problem, Sizes& sizes);

}  // namespace flashtile
