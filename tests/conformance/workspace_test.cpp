// SPDX-License-Identifier: Apache-2.0
//
// How much memory a call asks for: for no more rows than there are, and for no number that wraps.
#include <gtest/gtest.h>

#include "flashtile/error.hpp"
#include "ops/attention/implementations.hpp"
#include "support/attention_runs.hpp"
#include "support/problem_cases.hpp"

namespace flashtile::test {
namespace {

constexpr int64_t kStatedLengths[] = {6000,
                                      1'000'000'000,
                                      int64_t{1} << 60,
                                      int64_t{1} << 61,
                                      int64_t{1} << 62,
                                      9'000'000'000'000'000'000};

Inputs packed_inputs(const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k) {
  Inputs inputs{Tensor::random(DType::kF32, {70, 4, 64}, 1),
                Tensor::random(DType::kF32, {40, 2, 64}, 2),
                Tensor::random(DType::kF32, {40, 2, 64}, 3),
                Tensor::random(DType::kF32, {70, 4, 64}, 4),
                {}};
  inputs.options.cu_seqlens_q = cu_seqlens_q;
  inputs.options.cu_seqlens_k = cu_seqlens_k;
  return inputs;
}

TEST(StatedLength, MayBeAnyNumberFromTheLongestSequenceOn) {
  const Tensor cu_seqlens_q = Tensor::ints({0, 70});
  const Tensor cu_seqlens_k = Tensor::ints({0, 40});
  const Inputs unstated = packed_inputs(cu_seqlens_q, cu_seqlens_k);
  for (const int64_t stated : kStatedLengths) {
    Inputs inputs = unstated;
    inputs.options.max_seqlen_q = inputs.options.max_seqlen_k = stated;
    for (const std::string& implementation : all_implementations()) {
      EXPECT_EQ(differing(run(inputs, implementation), run(unstated, implementation)), "")
          << implementation << " for " << stated;
    }
  }
}

TEST(StatedLength, AsksForNoMoreMemoryThanAllRows) {
  for (const bool is_backward : {false, true}) {
    const std::string problem = std::string(is_backward ? "attention_bwd" : "attention_fwd") +
                                ":b3:cu_seqlens_q:tq70:cu_seqlens_k:tk40:hq4:hkv2:d64";
    const auto bytes_of = [&](int64_t stated) {
      const std::string length = std::to_string(stated);
      return explain(problem + ":max_seqlen_q=" + length + ":max_seqlen_k=" + length)
          .workspace_bytes;
    };
    for (const int64_t stated : kStatedLengths) EXPECT_EQ(bytes_of(stated), bytes_of(70)) << stated;
  }
}

/// What a problem text gives: the text of the error, "" for none.
std::string fault_of(const std::string& problem) {
  try {
    explain(problem);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(LongSequences, WhoseSizesDoNotFitIn64BitsAreErrors) {
  // 2^52 keys are the most that there may be; packed, these need 2^63 bytes and some.
  for (const std::string& isa : all_kernels()) {
    for (const std::string op : {"attention_fwd", "attention_bwd"}) {
      EXPECT_EQ(fault_of(op + ":hq1:sq99:sk4503599627370496:d256@" + isa),
                op + ": bytes of workspace are more than 64 bits count");
    }
  }
  EXPECT_EQ(fault_of("attention_fwd:sk4503599627370497"),
            "attention_fwd: seqlen_k is 4503599627370497, expected at most 4503599627370496");
  EXPECT_EQ(fault_of("attention_bwd:sq4503599627370497"),
            "attention_bwd: seqlen_q is 4503599627370497, expected at most 4503599627370496");
}

}  // namespace
}  // namespace flashtile::test
