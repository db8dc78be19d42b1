// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "judge.hpp"
#include "tensors.hpp"

namespace flashtile::cli {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// A backward call whose dq, (1, n, 1, 1), holds the values: the judge reads it by name.
class Judge : public ::testing::Test {
 protected:
  Verdict judge_values(const std::vector<double>& got, Expectation e,
                       NanRule rule = NanRule::kRefused) {
    OpCall call(*find_op("attention_bwd"));
    const std::vector<int64_t> shape{1, static_cast<int64_t>(got.size()), 1, 1};
    const TensorView tensor = pool_.make(DType::kF64, shape);
    from_numbers(got, tensor);
    call.set_tensor("dq", tensor);
    e.name = "dq";
    e.shape = shape;
    return judge(call, {&e, 1}, rule).at(0);
  }

  static Expectation expect(std::vector<double> values, double plain_error, double floor) {
    Expectation e;
    e.values = std::move(values);
    e.plain_error = plain_error;
    e.floor = floor;
    return e;
  }

  TensorPool pool_;
};

TEST_F(Judge, AllowsTwiceThePlainErrorAndTheFloor) {
  EXPECT_EQ(judge_values({1.5}, expect({1.0}, 0.2, 0.1)).fault, "");
  EXPECT_DOUBLE_EQ(judge_values({1.5}, expect({1.0}, 0.2, 0.1)).error, 0.5);
  EXPECT_NE(judge_values({1.0, 0.49}, expect({1.0, 1.0}, 0.2, 0.1)).fault, "");
  EXPECT_EQ(judge_values({1.0}, expect({1.0}, 0, 0)).fault, "");
}

TEST_F(Judge, InfinitiesHaveToMatch) {
  EXPECT_EQ(judge_values({kInf, -kInf}, expect({kInf, -kInf}, 0, 0)).fault, "");
  EXPECT_NE(judge_values({-kInf}, expect({kInf}, 1, 1)).fault, "");
  EXPECT_NE(judge_values({1e300}, expect({kInf}, 1, 1)).fault, "");
  EXPECT_NE(judge_values({kInf}, expect({1.0}, kInf, 1)).fault, "");
  EXPECT_NE(judge_values({kNan}, expect({kInf}, 1, 1)).fault, "");
}

TEST_F(Judge, NanIsAFaultUnlessItIsExpected) {
  EXPECT_NE(judge_values({kNan}, expect({1.0}, kInf, 1)).fault, "");
  EXPECT_NE(judge_values({kNan}, expect({kNan}, 1, 1)).fault, "");
  EXPECT_EQ(judge_values({kNan}, expect({kNan}, 0, 0), NanRule::kExpected).fault, "");
  EXPECT_NE(judge_values({1.0}, expect({kNan}, 1, 1), NanRule::kExpected).fault, "");
  EXPECT_NE(judge_values({kNan}, expect({1.0}, 1, 1), NanRule::kExpected).fault, "");
  EXPECT_EQ(judge_values({7.0}, expect({kNan}, 0, 0), NanRule::kIgnored).fault, "");
}

TEST_F(Judge, FaultSaysWhereAndHowMuch) {
  const std::string fault = judge_values({1, 2, 9}, expect({1, 2, 3}, 0, 0.5)).fault;
  EXPECT_NE(fault.find("(0, 2, 0, 0)"), std::string::npos) << fault;
  EXPECT_NE(fault.find("error 6"), std::string::npos) << fault;
}

TEST_F(Judge, ExactElementsHaveToBeEqual) {
  Expectation e = expect({1, 0}, 5, 5);
  e.is_exact = true;
  EXPECT_EQ(judge_values({1, 0}, e).fault, "");
  EXPECT_NE(judge_values({1, 1}, e).fault, "");
}

Expectation tensor(std::string name, std::vector<int64_t> shape, std::vector<double> values) {
  Expectation e;
  e.name = std::move(name);
  e.shape = std::move(shape);
  e.values = std::move(values);
  return e;
}

TEST(ExactZeros, RowsWithoutKeysAreZeroInOutAndDq) {
  // Two queries, two heads: lse is (1, heads, seqlen), out (1, seqlen, heads, dim).
  std::vector<Expectation> all{tensor("lse", {1, 2, 2}, {0.5, -kInf, 0.25, 1}),
                               tensor("out", {1, 2, 2, 1}, {1, 2, 0, 4}),
                               tensor("dq", {1, 2, 2, 2}, {1, 1, 2, 2, 0, 0, 4, 4})};
  mark_exact_zeros(all);
  EXPECT_EQ(all[1].is_zero, (std::vector<uint8_t>{0, 0, 1, 0}));
  EXPECT_EQ(all[2].is_zero, (std::vector<uint8_t>{0, 0, 0, 0, 1, 1, 0, 0}));
}

TEST(ExactZeros, PackedRowsWithoutKeysAreZero) {
  std::vector<Expectation> all{tensor("lse", {2, 3}, {0, 0, -kInf, 0, -kInf, 0}),
                               tensor("out", {3, 2, 1}, {1, 1, 1, 0, 0, 1})};
  mark_exact_zeros(all);
  EXPECT_EQ(all[1].is_zero, (std::vector<uint8_t>{0, 0, 0, 1, 1, 0}));
}

TEST(ExactZeros, KeysThatNobodySeesAreZeroInDkAndDv) {
  std::vector<Expectation> all{tensor("dk", {1, 3, 1, 2}, {0, 0, 0, 0, 1, 0}),
                               tensor("dv", {1, 3, 1, 1}, {0, 5, 0})};
  mark_exact_zeros(all);
  EXPECT_EQ(all[0].is_zero, (std::vector<uint8_t>{1, 1, 0, 0, 0, 0}));
  EXPECT_EQ(all[1].is_zero, (std::vector<uint8_t>{1, 0, 0}));
}

TEST_F(Judge, ExactZerosAllowNoSmallError) {
  Expectation e = expect({0, 0}, 1, 1);
  e.is_zero = {1, 0};
  EXPECT_EQ(judge_values({0, 0.5}, e).fault, "");
  EXPECT_NE(judge_values({1e-30, 0}, e).fault, "");
}

}  // namespace
}  // namespace flashtile::cli
