// SPDX-License-Identifier: Apache-2.0
//
// An op of linear attention that the library does not have, added as docs/adding.md says: what
// stands there as include/flashtile/linear.hpp and the family's header is here. All else follows
// from its entry: tests/unit/toy_linear_op_test.cpp has the faces, for_each_linear_case the rest.
#pragma once

#include <vector>

#include "flashtile/linear.hpp"
#include "ops/linear/implementation.hpp"

namespace flashtile::toy {

/// A sum that leaks: S_t = exp(g_t) S_{t-1} + x_t, o_t = scale S_t + D x_t, all of them vectors of
/// head_dim, with one decay for a head. x is `inputs.v`; D (heads) may be absent, scale is 1.
void leaky_sum_fwd(const LinearArgs& args, const Context& context = {});
void leaky_sum_bwd(const LinearArgs& args, const Context& context = {});
void leaky_sum_step(const LinearArgs& args, const Context& context = {});

LinearImplementation leaky_sum_reference(LinearPass pass);

/// Its tables, which the first call registers for the process.
const std::vector<const OpSpec*>& leaky_sum_specs();

}  // namespace flashtile::toy
