// SPDX-License-Identifier: Apache-2.0
//
// Running ops by their tables: forward before backward, in double, on a forced implementation.
#pragma once

#include <string>
#include <string_view>

#include "random_problem.hpp"

namespace flashtile::cli {

/// The part of an implementation's name behind the op's: "avx512" of "attention_fwd_avx512".
std::string_view implementation_suffix(const OpSpec& spec, std::string_view implementation);

/// True if `name` is that of an implementation of an op on this device, or its part behind the
/// op's.
bool has_implementation(const OpSpec& spec, std::string_view name, DeviceType device);

/// The implementation that a problem text (its "@NAME") and a flag ask for; empty: none. Throws
/// Error where they ask for different ones, or for one that neither the op nor its forward or
/// backward op has.
std::string asked_implementation(const ProblemText& problem, const std::string& flag,
                                 DeviceType device);

/// The last implementation of an op is its reference.
std::string reference_of(const OpSpec& spec);
bool is_reference(const OpSpec& spec, std::string_view implementation);

/// The op whose results a backward op takes: X_fwd for X_bwd; null for others.
const OpSpec* forward_of(const OpSpec& spec);
/// X_bwd for X_fwd, where there is one.
const OpSpec* backward_of(const OpSpec& spec);

/// True when `name` is an input of the backward op that its forward op computes (out, lse).
bool is_forward_result(const OpSpec& backward, std::string_view name);

/// True when a backward op takes any result of its forward op.
bool needs_forward(const OpSpec& backward);

/// The forward call that belongs to a backward call: the same inputs and options, and as outputs
/// the tensors that the backward call takes as inputs.
OpCall forward_call(const OpCall& backward);

/// Runs the forward op of a backward call, so that its out, lse, ... hold what they should: by the
/// implementation with this suffix, or by the reference where that one refuses or does not exist.
void run_forward_of(const OpCall& backward, std::string_view suffix, const Context& context);

/// The same call in double: floating tensors become f64 where their row of the table allows it.
/// Outputs are new and poisoned.
OwnedCall promoted(const OpCall& call);

/// The same call with outputs of its own, poisoned; inputs are shared. For a backward op the
/// forward results are new as well.
OwnedCall with_own_outputs(const OpCall& call);

/// What a run gave.
struct RunResult {
  bool is_refused = false;  ///< no implementation, or the forced one does not take the problem
  std::string text;         ///< why it was refused, or what failed; empty when it went well
};

/// Runs a forced implementation; errors become text. Other errors than refusals count as failures.
RunResult run_forced(const OpCall& call, const std::string& implementation, const Context& context);

}  // namespace flashtile::cli
