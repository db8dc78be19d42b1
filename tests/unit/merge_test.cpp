// SPDX-License-Identifier: Apache-2.0
//
// attention_merge: empty parts, order, the whole from its parts.
#include "flashtile/merge.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "flashtile/attention.hpp"
#include "flashtile/error.hpp"
#include "flashtile/explain.hpp"
#include "support/problem_cases.hpp"
#include "support/tensor.hpp"

namespace flashtile::test {
namespace {

constexpr int64_t kRows = 3, kHeads = 2, kDim = 37;

Context forced(const std::string& implementation) {
  Context context;
  context.implementation = implementation;
  return context;
}

struct Parts {
  explicit Parts(int64_t count, DType dtype = DType::kF32)
      : out_parts(Tensor::random(dtype, {count, 1, kRows, kHeads, kDim}, 1)),
        lse_parts(Tensor::random(DType::kF32, {count, 1, kHeads, kRows}, 2)),
        out(dtype, {1, kRows, kHeads, kDim}),
        lse(DType::kF32, {1, kHeads, kRows}) {}

  void empty(int64_t part) const {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < kRows; ++i) {
        lse_parts.set({part, 0, h, i}, -kInf);
        for (int64_t d = 0; d < kDim; ++d) out_parts.set({part, 0, i, h, d}, kNan);
      }
    }
  }
  void run(const std::string& implementation) const {
    attention_merge(out_parts, lse_parts, out, lse, forced(implementation));
  }

  Tensor out_parts, lse_parts, out, lse;
};

// flashinfer#4051, vllm PR 39148
TEST(AttentionMerge, EmptyPartsAreNotRead) {
  for (const std::string& implementation : implementations("attention_merge")) {
    Parts all(2);
    all.empty(0);
    all.empty(1);
    all.run(implementation);
    for (const double x : all.out.numbers()) EXPECT_EQ(x, 0) << implementation;
    for (const double x : all.lse.numbers()) EXPECT_EQ(x, -kInf) << implementation;
  }
}

// flashinfer#4051
TEST(AttentionMerge, OnePartThatSawKeysComesThroughBitForBit) {
  for (const std::string& implementation : implementations("attention_merge")) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (int64_t full = 0; full < 3; ++full) {
        const Parts parts(3, dtype);
        parts.out_parts.set({full, 0, 0, 0, 0}, -0.0);
        for (int64_t p = 0; p < 3; ++p) {
          if (p != full) parts.empty(p);
        }
        parts.run(implementation);
        for (int64_t h = 0; h < kHeads; ++h) {
          for (int64_t i = 0; i < kRows; ++i) {
            EXPECT_EQ(parts.lse.get({0, h, i}), parts.lse_parts.get({full, 0, h, i}));
            for (int64_t d = 0; d < kDim; ++d) {
              const double expected = parts.out_parts.get({full, 0, i, h, d});
              const double got = parts.out.get({0, i, h, d});
              EXPECT_EQ(got, expected) << implementation;
              EXPECT_EQ(std::signbit(got), std::signbit(expected)) << implementation;
            }
          }
        }
      }
    }
  }
}

// flashinfer#4051, vllm PR 39148
TEST(AttentionMerge, InfinityIsNoEmptyPart) {
  for (const std::string& implementation : implementations("attention_merge")) {
    const Parts parts(2);
    parts.lse_parts.set({1, 0, 1, 2}, kInf);
    try {
      parts.run(implementation);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(),
                   "attention_merge: lse_parts of part 1, sequence 0, head 1, query 2 is inf, "
                   "expected -inf for a part without keys");
    }
    EXPECT_TRUE(std::isnan(parts.out.get({0, 0, 0, 0})));
  }
}

TEST(AttentionMerge, NanComesThroughInItsRowAlone) {
  for (const std::string& implementation : implementations("attention_merge")) {
    const Parts parts(2);
    parts.lse_parts.set({1, 0, 1, 2}, kNan);
    parts.run(implementation);
    EXPECT_TRUE(std::isnan(parts.lse.get({0, 1, 2})));
    EXPECT_TRUE(std::isnan(parts.out.get({0, 2, 1, 5})));
    EXPECT_TRUE(std::isfinite(parts.out.get({0, 2, 0, 5})));
    EXPECT_TRUE(std::isfinite(parts.out.get({0, 1, 1, 5})));
  }
}

// flashinfer#4051
TEST(AttentionMerge, OrderMattersOnlyInRounding) {
  for (const std::string& implementation : implementations("attention_merge")) {
    const Parts parts(4);
    parts.empty(1);
    parts.run(implementation);
    for (const double x : parts.out.numbers()) EXPECT_TRUE(std::isfinite(x)) << implementation;
    Parts turned(4);
    for (int64_t p = 0; p < 4; ++p) {
      for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t i = 0; i < kRows; ++i) {
          turned.lse_parts.set({p, 0, h, i}, parts.lse_parts.get({3 - p, 0, h, i}));
          for (int64_t d = 0; d < kDim; ++d) {
            turned.out_parts.set({p, 0, i, h, d}, parts.out_parts.get({3 - p, 0, i, h, d}));
          }
        }
      }
    }
    turned.run(implementation);
    EXPECT_LT(max_difference(turned.out, parts.out), 1e-6);
    EXPECT_LT(max_difference(turned.lse, parts.lse), 1e-6);
  }
}

/// Attention over three parts of the keys, one of them hidden from some rows, joined.
TEST(AttentionMerge, PartsMakeTheWhole) {
  const Tensor q = Tensor::random(DType::kF32, {1, kRows, kHeads, 16}, 3);
  const Tensor k = Tensor::random(DType::kF32, {1, 90, kHeads, 16}, 4);
  const Tensor v = Tensor::random(DType::kF32, {1, 90, kHeads, kDim}, 5);
  const Parts whole(3);
  AttentionOptions options;
  options.causal = true;
  options.query_offset = 20;
  attention_fwd(q, k, v, whole.out, whole.lse, options);
  const Parts parts(3);
  const int64_t ends[] = {0, 11, 40, 90};
  for (int64_t p = 0; p < 3; ++p) {
    options.query_offset = 20 - ends[p];
    const TensorView out = TensorView(parts.out_parts).sliced(0, p, p + 1);
    const TensorView lse = TensorView(parts.lse_parts).sliced(0, p, p + 1);
    TensorView out_view(out.data, DType::kF32, {1, kRows, kHeads, kDim});
    out_view.data = out.at({0, 0, 0, 0, 0});
    TensorView lse_view(lse.data, DType::kF32, {1, kHeads, kRows});
    lse_view.data = lse.at({0, 0, 0, 0});
    attention_fwd(q, TensorView(k).sliced(1, ends[p], ends[p + 1]),
                  TensorView(v).sliced(1, ends[p], ends[p + 1]), out_view, lse_view, options);
  }
  for (const std::string& implementation : implementations("attention_merge")) {
    parts.run(implementation);
    EXPECT_LT(max_difference(parts.out, whole.out), 2e-6) << implementation;
    EXPECT_LT(max_difference(parts.lse, whole.lse), 2e-6) << implementation;
  }
}

class MergeProblems : public testing::TestWithParam<const char*> {};
TEST_P(MergeProblems, AgreeWithReference) { expect_problem_conforms(GetParam()); }
INSTANTIATE_TEST_SUITE_P(
    Texts, MergeProblems,
    testing::Values("attention_merge:parts2:b2:sq5:hq3:dv64:lse",
                    "attention_merge:parts9:b1:sq70:hq2:dv13:lse:bf16",
                    "attention_merge:parts3:b2:sq5:hq3:dv128:out.f32:lse:bf16",
                    "attention_merge:parts1:b1:sq1:hq1:dv1:lse:f16",
                    "attention_merge:parts4:out_parts[parts,7,3,20]:lse_parts[parts,3,7]:"
                    "out[7,3,20]:lse[3,7]",
                    "attention_merge:parts3:b0:sq5:hq3:dv16:lse"),
    [](const auto& test) { return test_name(test.param); });

TEST(AttentionMergeErrors, NameShapes) {
  const Parts parts(2);
  const Tensor packed(DType::kF32, {kRows, kHeads, kDim});
  EXPECT_THROW(attention_merge(parts.out_parts, parts.lse_parts, packed, parts.lse), Error);
  const Tensor short_lse(DType::kF32, {1, 1, kHeads, kRows});
  EXPECT_THROW(attention_merge(parts.out_parts, short_lse, parts.out, parts.lse), Error);
  EXPECT_THROW(attention_merge(parts.out_parts, parts.lse_parts, parts.lse_parts, parts.lse),
               Error);
}

}  // namespace
}  // namespace flashtile::test
