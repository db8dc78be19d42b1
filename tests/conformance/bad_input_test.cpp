// SPDX-License-Identifier: Apache-2.0
//
// What is wrong is an error that names op, argument, what was found and what was expected, before
// anything is written.
#include "bad_input.hpp"

#include <gtest/gtest.h>

#include "flashtile/error.hpp"
#include "flashtile/explain.hpp"

namespace flashtile::test {
namespace {

class BadInput : public testing::TestWithParam<BadInputCase> {};

TEST_P(BadInput, IsAnErrorThatNamesItAndNothingIsWritten) {
  for (const bool is_backward : {false, true}) {
    if (GetParam().ops == Ops::kForward && is_backward) continue;
    if (GetParam().ops == Ops::kBackward && !is_backward) continue;
    ValidCall call(is_backward);
    ASSERT_NO_THROW(call.run());  // it is right before it is spoilt
    ValidCall spoilt(is_backward);
    GetParam().spoil(spoilt);
    const auto before = spoilt.contents();
    try {
      spoilt.run();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.code(), GetParam().code) << text;
      EXPECT_TRUE(text.starts_with(is_backward ? "attention_bwd: " : "attention_fwd: ")) << text;
      for (const std::string& fragment : GetParam().fragments) {
        EXPECT_NE(text.find(fragment), std::string::npos) << "'" << fragment << "' in: " << text;
      }
    }
    EXPECT_EQ(spoilt.contents(), before);
  }
}

std::string case_name(const testing::TestParamInfo<BadInputCase>& test) { return test.param.name; }
INSTANTIATE_TEST_SUITE_P(Shapes, BadInput, testing::ValuesIn(bad_shapes()), case_name);
INSTANTIATE_TEST_SUITE_P(DtypesAndMemory, BadInput, testing::ValuesIn(bad_dtypes_and_memory()),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Lengths, BadInput, testing::ValuesIn(bad_lengths()), case_name);
INSTANTIATE_TEST_SUITE_P(Options, BadInput, testing::ValuesIn(bad_options()), case_name);

/// A call that reads t of 9 elements, with outputs of a known content.
struct IndexCase {
  const char* name;
  const char* mask;
  const char* score;
  const char* expected;  ///< a part of the error; empty: the call is right
  bool is_causal = false;
};

constexpr const char* kSigns = "an expression reads t at 9 in dimension 0, which has size 9";

const IndexCase kIndexCases[] = {
    {"InMask", "t[k_idx] > 0.0", "", kSigns},
    {"InScore", "", "score * t[k_idx]", kSigns},
    {"BelowZero", "t[k_idx - 1] > 0.0", "", "t at -1 in dimension 0"},
    // Bounds could decide these masks without the element that is not there.
    {"InASeenBlock", "k_idx < 20 && t[q_idx + 6] < 100.0", "", "t at 9 in"},
    {"InASeenBlockByOr", "t[q_idx + 6] > -100.0 || k_idx < 0", "", "t at 9 in"},
    {"InAHiddenBlock", "k_idx < 400 && t[min(k_idx, 9)] > 5.0", "", "t at 9 in"},
    {"OfAnElementThatIsRead", "t[int(t[k_idx % 9]) * 9] > 0.0", "", "t at 9 in"},
    {"ByTheScore", "", "score + t[int(score * 0.0) + 9]", "t"},
    // Right, because nothing asks for the element that is not there.
    {"BehindAnd", "k_idx < 9 && t[k_idx] > 0.0", "", ""},
    {"BehindOr", "k_idx >= 9 || t[k_idx] > 0.0", "", ""},
    {"BehindAPosition", "k_idx <= q_idx + 6 && t[min(q_idx + 6 - k_idx, 8)] > 0.0", "", ""},
    {"BehindTheCausalMask", "t[min(q_idx + query_offset - k_idx, 8)] > 0.0", "", "", true},
    {"BehindAMask", "k_idx < 9", "score * t[k_idx]", ""},
    {"BehindACondition", "", "k_idx < 9 ? score * t[k_idx] : score", ""},
    {"BehindAnyScore", "", "score > 0.0 ? score + t[min(k_idx, 8)] : score", ""},
    {"ByTheScoreWithinLimits", "", "score + t[min(max(int(score), 0), 8)]", ""},
};

/// Nothing is written before an index is known to be right, unless it depends on the score itself.
TEST(IndexOutOfRange, IsAnErrorBeforeAnythingIsWritten) {
  const std::vector<double> signs = {1, -1, 1, 1, -1, 1, -1, -1, 1};
  const Tensor table = Tensor::of(DType::kF32, {9}, signs);
  const Tensor q = Tensor::random(DType::kF32, {1, 4, 1, 8}, 1);
  const Tensor k = Tensor::random(DType::kF32, {1, 10, 1, 8}, 2);
  for (const std::string& implementation : all_implementations()) {
    for (const IndexCase& test : kIndexCases) {
      const std::string where = std::string(test.name) + "@" + implementation;
      const Tensor out = Tensor::filled(DType::kF32, {1, 4, 1, 8}, 77);
      AttentionOptions options;
      options.mask = test.mask;
      options.score = test.score;
      options.causal = test.is_causal;
      options.aux = {{"t", table, {}}};
      Context context;
      context.implementation = implementation;
      const std::string expected = test.expected;
      try {
        attention_fwd(q, k, k, out, {}, options, context);
        EXPECT_EQ(expected, "") << where;
        EXPECT_NE(out.get({0, 3, 0, 7}), 77) << where;
      } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_NE(expected, "") << where << ": " << text;
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << text;
        EXPECT_TRUE(text.starts_with("attention_fwd: ")) << text;
        EXPECT_NE(text.find(expected), std::string::npos) << where << ": " << text;
        if (std::string(test.name) == "ByTheScore") continue;
        for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(out.get({0, i, 0, 0}), 77) << where;
      }
    }
  }
}

TEST(UnknownImplementation, IsAnErrorThatNamesIt) {
  ValidCall call(/*is_backward=*/false);
  Context context;
  context.implementation = "warp_drive";
  try {
    run_attention(call.args, false, context);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "attention_fwd: no implementation is called 'warp_drive'");
  }
}

TEST(MentionedNames, AreReadAlsoWhereTheyHaveNoEffect) {
  for (const bool is_backward : {false, true}) {
    ValidCall call(is_backward);
    call.args.mask = "1 || t[k_idx] > 0.0";
    call.args.score = "1 ? score : score * param.x";
    call.args.aux = {{"t", call.zeros(DType::kF32, {10}), {}}};
    call.args.params = {{"x", 3}};
    EXPECT_NO_THROW(call.run());
  }
}

TEST(RefusedProblem, IsNotSupportedAndAWrongOneIsAnError) {
  EXPECT_FALSE(supports("attention_bwd:b2:hq4:sq9:d64:block_table"));
  EXPECT_FALSE(supports("attention_fwd:d64:f64@scalar"));
  EXPECT_THROW(supports("attention_fwd:d2000"), Error);
}

TEST(RefusedProblem, ListsEveryImplementationAndWhy) {
  const Tensor q = Tensor::random(DType::kF64, {1, 3, 1, 8}, 1);
  for (const std::string& implementation : all_kernels()) {
    try {
      run({q, q, q, {}, {}}, implementation);
      ADD_FAILURE() << implementation;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      const std::string text = error.what();
      for (const std::string& name : all_kernels()) {
        EXPECT_NE(text.find("attention_fwd_" + name + ": "), std::string::npos) << text;
      }
      EXPECT_NE(text.find("f64"), std::string::npos) << text;
    }
  }
  EXPECT_NO_THROW(run({q, q, q, {}, {}}, ""));  // the reference takes it
}

}  // namespace
}  // namespace flashtile::test
