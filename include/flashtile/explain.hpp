// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashtile/context.hpp"
#include "flashtile/export.hpp"

namespace flashtile {

/// One implementation, and why it does not take the problem.
struct Candidate {
  std::string implementation;
  std::string refusal;  ///< the first condition that fails; empty: it takes the problem
};

/// What the library would do with a problem.
struct Explanation {
  std::string problem;  ///< its text form
  std::string chosen;   ///< the implementation; empty: none takes it
  std::string plan;     ///< how the chosen one would run: tiles, splits, workspace
  /// Bytes that a Context's workspace must hold, from an address on that is a multiple of 256, for
  /// as many workers as the context allows. On the CPU a workspace may be left out; on a GPU it is
  /// needed wherever this is not 0.
  int64_t workspace_bytes = 0;
  std::vector<Candidate> candidates;
};

/// Many lines for a person: the problem, the choice, and one line for each candidate.
FLASHTILE_API std::string to_string(const Explanation& explanation);

/// Names of the implementations of an op for tensors of a device, best first; "attention_fwd" gives
/// {"attention_fwd_avx512", ..., "attention_fwd_reference"}. Throws Error for an unknown op.
FLASHTILE_API std::vector<std::string> implementations(const std::string& op,
                                                       DeviceType device = DeviceType::kCpu);

/// The op that a problem text describes, without tensors: "attention_fwd:b2:hq8:sq129:causal:bf16".
/// docs/problems.md gives the grammar. Throws Error where it cannot be read.
/// `context` says for which device or architecture.
FLASHTILE_API Explanation explain(const std::string& problem_text, const Context& context = {});

/// True when an implementation (any, or the one after @) takes the problem text.
FLASHTILE_API bool supports(const std::string& problem_text);

}  // namespace flashtile
