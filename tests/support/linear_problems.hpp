// SPDX-License-Identifier: Apache-2.0
//
// Problems of every op of linear attention, made from its table: a new op is tested as soon as it
// has one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "random_problem.hpp"

namespace flashtile::test {

/// An op without "_fwd" or "_bwd", and what follows the lengths in its problem texts: sizes of
/// grouped heads, every optional input, initial states, options.
struct LinearCase {
  std::string op;
  std::string rest;
  bool is_normalized = false;

  /// "gla_fwd:b2:t7:...:final_state"; `lengths` is "b2:t7" or "cu_seqlens={0,3,7}".
  std::string forward(const std::string& lengths) const;
  /// With incoming gradients of all final states.
  std::string backward(const std::string& lengths) const;
  /// Of two sequences, with lines 3 and 0 of five where the op has states.
  std::string step() const;
};

/// Calls `check` for one case of each op, toy::leaky_sum among them, and one more with all its
/// switches on where it has any; failures name the case. One test for all of them, because a case
/// takes less time than a process.
void for_each_linear_case(const std::function<void(const LinearCase&)>& check);

/// Random inputs. What divides has a divisor that stays away from 0.
cli::OwnedCall linear_call(const std::string& text, uint64_t seed = 1);

/// True for a tensor of the call that has a row for each row of the sequences.
bool is_timed(const OpCall& call, const std::string& name);

/// The part of a packed tensor or of a batch that belongs to rows [begin, end): of (total, ...) or
/// (batch, seqlen, ...).
TensorView time_slice(const OpCall& call, const TensorView& tensor, int64_t begin, int64_t end);

/// Sequence b of a packed call, as a call with a batch of one; outputs are its own, poisoned.
cli::OwnedCall sequence_of(const OpCall& packed, int64_t b);

/// Rows [begin, end) of a call with a batch, states as they are; outputs are its own, poisoned.
cli::OwnedCall part_of(const OpCall& call, int64_t begin, int64_t end);

/// The rows of log decays that run over time: g or w; of mlstm the forget gate.
std::vector<std::string> gate_names(const OpCall& call);

}  // namespace flashtile::test
