// SPDX-License-Identifier: Apache-2.0
//
// Linear attention on tensors with any strides: the same bits, and nothing around them is read or
// written.
#include <gtest/gtest.h>

#include "op_runs.hpp"
#include "support/attention_runs.hpp"
#include "support/laid_out_call.hpp"
#include "support/linear_problems.hpp"

namespace flashtile::test {
namespace {

/// Dimensions turned round in memory, with gaps, from the end of the memory to its start.
Layout turned(const TensorView& tensor) {
  Layout layout;
  for (int d = tensor.ndim - 1; d >= 0; --d) layout.order.push_back(d);
  layout.is_reversed = true;
  layout.gap = 1;
  layout.step = 2;
  return layout;
}

void expect_same_by_strides(const std::string& text) {
  const cli::OwnedCall call = linear_call(text);
  for (const std::string& implementation : call.call.spec().implementations()) {
    for (const bool is_turned : {false, true}) {
      const cli::OwnedCall plain = cli::with_own_outputs(call.call);
      const LaidOutCall laid_out(call.call, [&](std::string_view, const TensorView& tensor) {
        return is_turned ? turned(tensor) : Layout{};
      });
      EXPECT_EQ(cli::run_forced(plain.call, implementation, one_worker()).text, "");
      EXPECT_EQ(cli::run_forced(laid_out.call(), implementation, one_worker()).text, "");
      EXPECT_EQ(differing_outputs(plain.call, laid_out.call()), "") << implementation;
      EXPECT_EQ(laid_out.damage(), "") << implementation;
    }
  }
}

TEST(LinearLayout, AnyStridesGiveTheSameBits) {
  for_each_linear_case([](const LinearCase& one) {
    expect_same_by_strides(one.forward("b2:t7"));
    expect_same_by_strides(one.forward("cu_seqlens={0,3,3,8}") + ":bf16");
    expect_same_by_strides(one.step());
    expect_same_by_strides(one.backward("b2:t7"));
    expect_same_by_strides(one.backward("cu_seqlens={0,3,3,8}") + ":f16");
  });
}

// Short rows are taken together, and their parameters' gradients summed in one order.
TEST(LinearLayout, AnyStridesOfShortRowsGiveTheSameBits) {
  for (const char* sizes : {"hq1:d1", "hq3:d1", "hq8:d1", "hq4:d3", "hq3:d5", "hq17:d1"}) {
    SCOPED_TRACE(sizes);
    for (const char* rows : {":b2:t301", ":cu_seqlens={0,40,40,301}:bf16"}) {
      const std::string problem = std::string(sizes) + rows;
      expect_same_by_strides("log_decay_gate_fwd:" + problem + ":bias:A_log");
      expect_same_by_strides("log_decay_gate_bwd:" + problem + ":bias:A_log");
      expect_same_by_strides("feature_map_bwd:" + problem);
    }
  }
}

// Rows of whole vectors may be read and written where they lie.
TEST(LinearLayout, AnyStridesOfWholeVectorsGiveTheSameBits) {
  for (const char* text :
       {"gated_norm_fwd:b2:hq3:t40:d64:z:weight", "gated_norm_bwd:b2:hq3:t40:d64:z:weight",
        "gated_norm_bwd:b2:hq3:t40:d64:z:gate_first", "feature_map_fwd:b2:hq3:t40:d64",
        "feature_map_bwd:b2:hq3:t40:d64", "feature_map_bwd:b2:hq3:t40:d64:feature_map=softmax"}) {
    SCOPED_TRACE(text);
    expect_same_by_strides(text);
  }
}

}  // namespace
}  // namespace flashtile::test
