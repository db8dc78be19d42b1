// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "core/op_spec.hpp"

namespace flashtile::python {

/// What a call of attention visits for one head of one sequence: for each block of `block_m`
/// queries and each of `block_n` keys 0 (never), 1 (part of its pairs are seen) or 2 (all are).
std::vector<std::vector<int>> mask_blocks(const OpCall& call, int64_t batch_idx, int64_t head,
                                          int64_t block_m, int64_t block_n);

}  // namespace flashtile::python
