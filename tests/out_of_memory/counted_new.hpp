// SPDX-License-Identifier: Apache-2.0
//
// This program's operator new counts allocations of the calling thread, and fails on demand.
#pragma once

#include <cstdint>

namespace flashtile::test {

/// Allocations until one fails; negative: none does.
extern thread_local int64_t num_left;
extern thread_local int64_t num_made;

}  // namespace flashtile::test
