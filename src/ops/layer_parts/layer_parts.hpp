// SPDX-License-Identifier: Apache-2.0
//
// What layers of linear attention have around their recurrence.
#pragma once

#include <vector>

#include "ops/linear/implementation.hpp"

namespace flashtile {

std::vector<const OpSpec*> layer_part_specs();

LinearImplementation short_conv_reference(LinearPass pass);
LinearImplementation log_decay_gate_reference(LinearPass pass);
LinearImplementation gated_norm_reference(LinearPass pass);
LinearImplementation feature_map_reference(LinearPass pass);

}  // namespace flashtile
