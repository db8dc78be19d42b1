// SPDX-License-Identifier: Apache-2.0
//
// A row that sees no key passes no gradient, whatever it holds: with a sink its lse is the sink, so
// that -inf does not show it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "flashtile/attention.hpp"

namespace flashtile {
namespace {

constexpr int64_t kSeqlen = 6;
constexpr int64_t kHeadDim = 8;
constexpr int64_t kEmptyRow = 3;

struct Buffers {
  std::vector<float> q, k, v, out, lse, dout, dq, dk, dv;
  std::vector<float> sink = {0.25f};
  std::vector<float> dsink = {std::nanf("")};

  Buffers() {
    for (auto* x : {&q, &k, &v, &out, &dout, &dq, &dk, &dv}) {
      x->assign(kSeqlen * kHeadDim, std::nanf(""));
    }
    lse.assign(kSeqlen, std::nanf(""));
    uint32_t state = 1;
    for (auto* x : {&q, &k, &v, &dout}) {
      for (float& value : *x) {
        state = state * 1664525u + 1013904223u;
        value = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
      }
    }
  }
};

TensorView view(std::vector<float>& data) {
  return {data.data(), DType::kF32, {1, kSeqlen, 1, kHeadDim}};
}

void run(Buffers& b, AttentionOptions options, const std::string& isa) {
  options.sink = {b.sink.data(), DType::kF32, {1}};
  Context context;
  context.implementation = isa;
  const TensorView lse(b.lse.data(), DType::kF32, {1, 1, kSeqlen});
  attention_fwd(view(b.q), view(b.k), view(b.v), view(b.out), lse, options, context);
  options.dsink = {b.dsink.data(), DType::kF32, {1}};
  attention_bwd(view(b.dout), view(b.q), view(b.k), view(b.v), view(b.out), lse, view(b.dq),
                view(b.dk), view(b.dv), options, context);
}

/// Gradients with NaN in q and dout of the empty row equal those with numbers there.
void expect_no_trace(const AttentionOptions& options) {
  for (const std::string& name : implementations("attention_bwd")) {
    const std::string isa = name.substr(std::string("attention_bwd_").size());
    Buffers clean;
    Buffers poisoned;
    for (int64_t d = 0; d < kHeadDim; ++d) {
      const auto at = static_cast<size_t>(kEmptyRow * kHeadDim + d);
      poisoned.q[at] = poisoned.dout[at] = std::nanf("");
    }
    run(clean, options, isa);
    run(poisoned, options, isa);
    EXPECT_EQ(clean.lse[kEmptyRow], clean.sink[0]) << isa;
    EXPECT_EQ(clean.dk, poisoned.dk) << isa;
    EXPECT_EQ(clean.dv, poisoned.dv) << isa;
    EXPECT_EQ(clean.dsink, poisoned.dsink) << isa;
    EXPECT_TRUE(std::isfinite(poisoned.dsink[0])) << isa;
    for (int64_t d = 0; d < kHeadDim; ++d) {
      EXPECT_EQ(poisoned.dq[static_cast<size_t>(kEmptyRow * kHeadDim + d)], 0.0f) << isa;
      EXPECT_EQ(poisoned.out[static_cast<size_t>(kEmptyRow * kHeadDim + d)], 0.0f) << isa;
    }
  }
}

TEST(EmptyRowWithSink, PassesNothingWhenAMaskEmptiesIt) {
  AttentionOptions options;
  options.mask = "q_idx != 3";
  expect_no_trace(options);
}

TEST(EmptyRowWithSink, PassesNothingWhenABiasEmptiesIt) {
  std::vector<float> bias(kSeqlen * kSeqlen, 0.5f);
  for (int64_t j = 0; j < kSeqlen; ++j) {
    bias[static_cast<size_t>(kEmptyRow * kSeqlen + j)] = -std::numeric_limits<float>::infinity();
  }
  AttentionOptions options;
  options.bias = {bias.data(), DType::kF32, {1, 1, kSeqlen, kSeqlen}};
  expect_no_trace(options);
}

TEST(EmptyRowWithSink, PassesNothingWhenAListEmptiesIt) {
  std::vector<int32_t> counts = {1, 1, 1, 0, 1, 1};
  std::vector<int32_t> indices(kSeqlen, 0);
  AttentionOptions options;
  options.block_counts = {counts.data(), DType::kI32, {1, 1, kSeqlen}};
  options.block_indices = {indices.data(), DType::kI32, {1, 1, kSeqlen, 1}};
  options.block_rows = 1;
  options.block_cols = kSeqlen;
  expect_no_trace(options);
}

}  // namespace
}  // namespace flashtile
