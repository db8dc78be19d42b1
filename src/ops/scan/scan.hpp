// SPDX-License-Identifier: Apache-2.0
//
// Element-wise scans: a state for each channel, which no other channel sees.
#pragma once

#include <vector>

#include "ops/linear/implementation.hpp"

namespace flashtile {

std::vector<const OpSpec*> scan_specs();

LinearImplementation hgrn_reference(LinearPass pass);
LinearImplementation mamba1_reference(LinearPass pass);
LinearImplementation rwkv4_reference(LinearPass pass);
LinearImplementation slstm_reference(LinearPass pass);

}  // namespace flashtile
