// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/implementations.hpp"

namespace flashtile {

/// The definition of attention in double precision and plain loops: every option, every dtype, one
/// query row at a time. It is the measure of all other implementations and can be forced by name.
AttentionImplementation attention_reference(bool is_backward);

}  // namespace flashtile
