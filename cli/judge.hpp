// SPDX-License-Identifier: Apache-2.0
//
// Results against what they should be: the pass rule of tests/golden/README.md.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/op_spec.hpp"

namespace flashtile::cli {

/// What a tensor of a call should hold.
struct Expectation {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<double> values;    ///< row-major
  double plain_error = 0;        ///< largest error of a plain implementation
  double floor = 0;              ///< error that is allowed besides
  bool is_exact = false;         ///< every element has to be equal (integers)
  std::vector<uint8_t> is_zero;  ///< elements that have to be exactly 0; empty: none

  double tolerance() const { return is_exact ? 0 : 2 * plain_error + floor; }
};

/// What a NaN in an expectation means.
enum class NanRule : uint8_t {
  kRefused,   ///< there should be none: a fault
  kExpected,  ///< the result is NaN as well
  kIgnored,   ///< nothing is known about this element
};

/// How one tensor did.
struct Verdict {
  std::string name;
  double error = 0;  ///< largest, over elements whose expectation is finite
  double tolerance = 0;
  std::string fault;  ///< empty: it passed
};

/// Fills Expectation::is_zero: rows of out and dq where lse is -inf, and rows of dk and dv that are
/// 0 in both (keys that no query sees).
void mark_exact_zeros(std::vector<Expectation>& expected);

/// Compares the outputs of a call. Infinities have to match; where the expectation is finite, the
/// result is.
std::vector<Verdict> judge(const OpCall& call, std::span<const Expectation> expected,
                           NanRule nan_rule);

/// One line about the tensors that failed; empty when none did.
std::string fault_text(std::span<const Verdict> verdicts);

/// The largest error as a part of what is allowed.
double worst_ratio(std::span<const Verdict> verdicts);

}  // namespace flashtile::cli
