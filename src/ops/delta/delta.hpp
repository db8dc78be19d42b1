// SPDX-License-Identifier: Apache-2.0
//
// The delta family: each row corrects what the state holds for its key.
#pragma once

#include <vector>

#include "ops/linear/implementation.hpp"

namespace flashtile {

std::vector<const OpSpec*> delta_specs();
LinearImplementation delta_reference(LinearPass pass);

}  // namespace flashtile
