// SPDX-License-Identifier: Apache-2.0
//
// Calls on a GPU that have been checked, selected and planned, so that the next one like them is
// launched at once. A call is like another where all that its plan and its checks depend on is the
// same: every option and shape, and of addresses their alignment. That outputs share no memory with
// anything is looked at anew, by ranges; a call whose ranges meet is not remembered.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ops/attention/implementations.hpp"

namespace flashtile {

/// A call as far as it comes before its launch.
struct PreparedCall {
  AttentionProblem problem;
  const AttentionImplementation* implementation = nullptr;
  AttentionPlan plan;
};

/// What one call has in common with others like it.
struct CallKey {
  CallKey(const AttentionArgs& args, bool is_backward, const Context& context);

  AttentionArgs args;  ///< addresses and dropout's numbers are left out
  bool is_backward;
  std::string asked;  ///< implementations asked for, by the context and the environment
  bool may_be_kept = true;

  bool operator==(const CallKey&) const = default;
};

/// The last calls of a thread.
class CallMemory {
 public:
  /// Null where there was none; valid until the next call of keep().
  const PreparedCall* find(const CallKey& key, const AttentionArgs& args);
  /// Gives the call where it is kept.
  const PreparedCall& keep(CallKey key, PreparedCall call);

 private:
  struct Entry {
    CallKey key;
    PreparedCall call;
  };
  static constexpr size_t kMaxEntries = 16;

  std::vector<std::unique_ptr<Entry>> entries_;
  size_t oldest_ = 0;
};

}  // namespace flashtile
