// SPDX-License-Identifier: Apache-2.0
//
// New keys and values that a call stores in its caches before it attends, and rotary embedding of
// them and of the queries.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/kept.hpp"
#include "core/kept_list.hpp"
#include "ops/attention/args.hpp"
#include "ops/attention/problem.hpp"

namespace flashtile {

/// What may go with k_new and rotary tensors. Throws Error.
void check_append(std::string_view op, const AttentionArgs& args, bool is_backward);

/// The number of new keys of sequence b (host lengths). Throws Error where they, or the positions
/// that they turn by, have no room.
int64_t check_new_keys(std::string_view op, const AttentionProblem& problem,
                       const AttentionArgs& args, int64_t b);

/// Throws Error where two sequences append to the same slot. Host lengths and pages, checked.
void check_new_slots(std::string_view op, const AttentionProblem& problem,
                     const AttentionArgs& args);

/// Stored keys of each sequence when the new ones are there. Host lengths, checked.
void find_appended_lengths(const AttentionProblem& problem, const AttentionArgs& args,
                           KeptList<int32_t>* lengths);

/// A call on host memory whose new keys have been stored: its arguments are those of the attention
/// that is left, over longer sequences and turned queries. Positions and pages have been checked.
class AppendedCall {
 public:
  AppendedCall(const AttentionProblem& problem, const AttentionArgs& args, const Context& context);

  const AttentionArgs& args() const { return *args_; }

 private:
  Kept<AttentionArgs> args_;
  KeptList<int32_t> lengths_;
  KeptList<char> queries_;
};

}  // namespace flashtile
