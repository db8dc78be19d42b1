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

/// How an implementation did on a call.
struct CallCheck {
  std::string method;  ///< "every element" or "16 rows of each sequence"
  std::vector<Verdict> verdicts;
  std::string fault;  ///< what failed; empty when all passed
  double max_error() const;
};

/// Runs the call once more on an implementation and compares it: with the reference where that is
/// affordable, else on some query rows of each sequence with plain loops in double.
CallCheck check_call(const OpCall& call, const std::string& implementation, const Context& context);

/// The same for the op's plain implementation.
CallCheck check_plain(const OpCall& call, const Context& context);

}  // namespace flashtile::cli
