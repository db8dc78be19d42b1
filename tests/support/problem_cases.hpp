// SPDX-License-Identifier: Apache-2.0
//
// Problem texts as test cases: ids, random inputs, and what every implementation should give.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "expectations.hpp"

namespace flashtile::test {

/// A problem text as the parameter of a test.
struct ProblemParam {
  std::string text;
};
void PrintTo(const ProblemParam& param, std::ostream* stream);

/// A name that GoogleTest takes, from a problem text.
std::string test_name(std::string_view text);

/// Both ops of "OP:rest" for each text ":rest"; attention_fwd gets lse as well.
std::vector<ProblemParam> both_ways(const std::vector<std::string>& texts);
std::vector<ProblemParam> forward_only(const std::vector<std::string>& texts);

/// The call of a problem text with random inputs; for a backward op also with the reference's
/// forward results.
cli::OwnedCall random_problem_call(std::string_view text, uint64_t seed = 1);

/// Where conformance tests run: one worker of the CPU, or the GPU that FLASHTILE_TEST_DEVICE names
/// ("cuda", "cuda:1"), as scripts/test_gpu.sh sets it.
Context test_context();

/// The implementations that have to pass on a call there: all of the CPU's; of a GPU's, of which
/// each serves what it is made for, those that take it. None is a test failure.
std::vector<std::string> implementations_for(const OpCall& call);

/// Whether atomics may sum a result in another order in each run: dq of 16 bits on a GPU.
bool may_differ_in_last_bits(const std::string& name);

/// Runs every implementation on the problem (a backward op after its own forward) and adds a test
/// failure for each that refuses or whose error is more than allowed.
void expect_problem_conforms(const std::string& text, uint64_t seed = 1);

}  // namespace flashtile::test
