// SPDX-License-Identifier: Apache-2.0
//
// The scalar-decay family: a state whose decay is one number for each row and head.
#pragma once

#include <vector>

#include "ops/linear/implementation.hpp"

namespace flashtile {

std::vector<const OpSpec*> scalar_decay_specs();
LinearImplementation scalar_decay_reference(LinearPass pass);

}  // namespace flashtile
