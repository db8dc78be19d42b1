// SPDX-License-Identifier: Apache-2.0
//
// What a call should give, from the reference in double, and how much error its precision costs.
#pragma once

#include "judge.hpp"
#include "op_runs.hpp"
#include "plain/plain.hpp"

namespace flashtile::cli {

/// Rounding unit that the floor of the pass rule is made of.
double rounding_unit(DType dtype, std::string_view tensor_name);

/// The dtype of a call: that of its first required floating input.
DType leading_dtype(const OpCall& call);

/// The outputs that a call gives, as the reference computes them in double from the same inputs;
/// tolerances from a plain implementation in the call's precision where the op has one.
/// `disagreement` is set when the reference and the plain implementation, both in double, differ.
std::vector<Expectation> reference_expectations(const OpCall& call, const Context& context,
                                                std::string* disagreement);

/// The same from the plain implementation in double, for query rows that `row_step` selects: what
/// can be afforded for any length. Null `plain` is not allowed.
std::vector<Expectation> sampled_expectations(const OpCall& call, const PlainOp& plain,
                                              int64_t row_step, const Context& context);

}  // namespace flashtile::cli
