// SPDX-License-Identifier: Apache-2.0
//
// Calls that have been checked, selected and planned, so that the next one like them is launched at
// once, without an allocation. A call is like another where all that its plan and its checks depend
// on is the same: every option and shape, and on a GPU the alignment of addresses. That outputs
// share no memory with anything is looked at anew, by ranges; a call whose ranges meet is not
// remembered. So is what tensors in host memory hold.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/running_mark.hpp"
#include "ops/attention/implementations.hpp"
#include "ops/attention/index_check.hpp"

namespace flashtile {

/// A call as far as it comes before its launch.
struct PreparedCall {
  AttentionProblem problem;
  const AttentionImplementation* implementation = nullptr;
  AttentionPlan plan;
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
  template <class Prepare, class Use>
  auto with_call(const AttentionArgs& args, bool is_backward, const Context& context,
                 const Prepare& prepare, const Use& use) {
    key_.assign(args, is_backward, context);
    Entry* entry = find(args);
    if (entry == nullptr) {
      PreparedCall call = prepare();
      entry = keep(call);
      if (entry == nullptr) return use(static_cast<const PreparedCall&>(call));
    }
    const RunningMark running(&entry->is_running);
    return use(static_cast<const PreparedCall&>(entry->call));
  }

 private:
  struct Entry {
    CallKey key;
    PreparedCall call;
    bool is_running = false;
  };
  static constexpr size_t kMaxEntries = 16;

  /// Null where no call like that of key_ is remembered. Throws Error where host data is wrong.
  Entry* find(const AttentionArgs& args);
  /// Remembers the call of key_; null, and `call` as it was, where that may not be.
  Entry* keep(PreparedCall& call);

  CallKey key_;  ///< of the call that is looked for
  std::vector<std::unique_ptr<Entry>> entries_;
  size_t oldest_ = 0;
};

}  // namespace flashtile
