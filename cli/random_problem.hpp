// SPDX-License-Identifier: Apache-2.0
//
// A problem text with memory behind it: random inputs, poisoned outputs.
#pragma once

#include <cstdint>

#include "core/problem_text.hpp"
#include "tensors.hpp"

namespace flashtile::cli {

/// A call and the memory of its tensors.
struct OwnedCall {
  explicit OwnedCall(const OpCall& from) : call(from) {}
  OpCall call;
  TensorPool pool;
};

/// Inputs as the table's Fill column says, from a generator of our own so that a seed means the
/// same everywhere; values that the text gives; outputs poisoned. Throws Error.
OwnedCall random_call(const ProblemText& problem, uint64_t seed);

/// Random numbers of that text again, for one tensor: normal for floats, small for integers.
void fill_random(const TensorView& tensor, uint64_t seed);

}  // namespace flashtile::cli
