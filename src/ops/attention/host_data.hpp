// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "ops/attention/args.hpp"
#include "ops/attention/index_check.hpp"
#include "ops/attention/problem.hpp"

namespace flashtile {

/// Checks the integer tensors of a call whose data lies on the host: monotone cu_seqlens inside
/// their tensors, lengths inside the storage, pages and lines and listed blocks that exist. Throws
/// Error. Data on a device is clamped by the kernels instead. `index_checks` are those of the
/// problem.
void check_attention_host_data(std::string_view op, const AttentionProblem& problem,
                               const AttentionArgs& args, IndexChecks* index_checks);

/// The longest sequence of a host cu_seqlens tensor; checks that it is monotone from 0 to at most
/// `total`.
int64_t longest_sequence(std::string_view op, std::string_view name, const TensorView& cu_seqlens,
                         int64_t total);

}  // namespace flashtile
