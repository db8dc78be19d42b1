// SPDX-License-Identifier: Apache-2.0
//
// When a call of attention is like one before: where all that its plan and its checks depend on is
// the same, every option and shape, and on a GPU the alignment of addresses. That outputs share no
// memory with anything is looked at anew, and so is what tensors in host memory hold.
#pragma once

#include <string>

#include "core/kept_calls.hpp"
#include "ops/attention/implementations.hpp"
#include "ops/attention/index_check.hpp"

namespace flashtile {

/// A call as far as it comes before its launch.
struct PreparedCall : PlannedCall<AttentionProblem, AttentionPlan, AttentionArgs> {
  IndexChecks index_checks;
};

/// What one call has in common with others like it.
struct CallKey {
  /// Becomes the key of a call, in the memory of the key that it was.
  void assign(const AttentionArgs& call_args, bool backward, const Context& context);

  AttentionArgs args;  ///< addresses and dropout's numbers are left out
  bool is_backward = false;
  bool values_in_keys = false;
  std::string asked;  ///< implementations asked for, by the context and the environment
  bool may_be_kept = true;

  bool operator==(const CallKey&) const = default;
};

/// The last calls of a thread.
class CallMemory {
 public:
  /// What use(call) gives, for a call like the last ones, or for the one that prepare() makes.
  /// Throws Error where host data is wrong.
  template <class Prepare, class Use>
  auto with_call(const AttentionArgs& args, bool is_backward, const Context& context,
                 const Prepare& prepare, const Use& use) {
    calls_.next_key().assign(args, is_backward, context);
    return calls_.with_call([&](PreparedCall& call) { return is_still(call, args); }, prepare, use);
  }

 private:
  static bool is_still(PreparedCall& call, const AttentionArgs& args);

  KeptCalls<CallKey, PreparedCall> calls_;
};

}  // namespace flashtile
