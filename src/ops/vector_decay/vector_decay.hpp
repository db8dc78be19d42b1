// SPDX-License-Identifier: Apache-2.0
//
// The vector-decay family: a state whose decay is a number for each row and key dimension; and
// gated slots, which are two of them.
#pragma once

#include <vector>

#include "ops/linear/implementation.hpp"

namespace flashtile {

std::vector<const OpSpec*> vector_decay_specs();
LinearImplementation vector_decay_reference(LinearPass pass);
LinearImplementation slots_reference(LinearPass pass);

}  // namespace flashtile
