// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "flashtile/error.hpp"
#include "unit/expr_random.hpp"
#include "variant/expr/builder.hpp"
#include "variant/expr/evaluate.hpp"
#include "variant/expr/parse.hpp"
#include "variant/expr/substitute.hpp"

namespace flashtile::variant {
namespace {

using testing::Data;
using testing::Generator;
using testing::random_variables;
using testing::RandomOptions;

bool alike(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || std::fabs(a - b) <= 1e-12 * std::fmax(std::fabs(a), std::fabs(b));
}

TEST(ExprEvaluate, RandomScoresMeanWhatTheirTextsSay) {
  const Data data(1);
  std::mt19937_64 random(2);
  int num_nan = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    Generator generator(seed, data, {.nonfinite = seed % 2 == 1, .large_ints = seed % 3 == 0});
    const auto witness = generator.number(1 + static_cast<int>(seed % 4));
    const Expr expr = parse_score(witness.text, Data::signatures());
    Evaluator evaluator(expr, data.views(expr), data.param_values(expr));
    for (int n = 0; n < 20; ++n) {
      const Variables at = random_variables(random);
      const double expected = witness.value(at);
      num_nan += std::isnan(expected);
      ASSERT_TRUE(alike(evaluator.number(at), expected)) << witness.text << "\n"
                                                         << evaluator.number(at) << " " << expected;
    }
    ASSERT_EQ(evaluator.index_error(), nullptr) << witness.text;
  }
  EXPECT_EQ(data.bad_reads, 0);
  EXPECT_GT(num_nan, 20);  // or the cases would be too tame
}

TEST(ExprEvaluate, RandomMasksMeanWhatTheirTextsSay) {
  const Data data(3);
  std::mt19937_64 random(4);
  int num_kept = 0;
  for (uint64_t seed = 0; seed < 800; ++seed) {
    Generator generator(seed, data, {.score = false, .large_ints = seed % 2 == 0});
    const auto witness = generator.boolean(1 + static_cast<int>(seed % 4));
    const Expr expr = parse_mask(witness.text, Data::signatures());
    Evaluator evaluator(expr, data.views(expr), data.param_values(expr));
    for (int n = 0; n < 20; ++n) {
      const Variables at = random_variables(random);
      ASSERT_EQ(evaluator.truth(at), witness.value(at)) << witness.text;
      num_kept += witness.value(at);
    }
  }
  EXPECT_GT(num_kept, 800 * 20 / 5);
  EXPECT_LT(num_kept, 800 * 20 * 4 / 5);
}

TEST(ExprEvaluate, BranchesNotTakenAreNotRead) {
  const std::vector<float> table = {1, 2, 3};
  const std::vector<AuxSignature> aux = {{"t", 1, true}};
  const std::vector<TensorView> views = {TensorView(table.data(), DType::kF32, {3})};
  Variables at;
  at.q_idx = 5;
  for (const char* text :
       {"q_idx < 3 ? t[q_idx] : 7.0", "select(q_idx >= 3, 7.0, t[q_idx])",
        "(q_idx < 3 && t[q_idx] > 0) ? 1.0 : 7.0", "(q_idx > 3 || t[q_idx] > 0) ? 7.0 : 1.0"}) {
    Evaluator evaluator(parse_score(text, aux), views, {});
    EXPECT_EQ(evaluator.number(at), 7) << text;
    EXPECT_EQ(evaluator.index_error(), nullptr) << text;
  }
}

TEST(ExprEvaluate, IndexOutOfRangeIsReportedAndNotRead) {
  const std::vector<float> table = {1, 2, 3, 4, 5, 6};
  const std::vector<AuxSignature> aux = {{"t", 2, true}};
  const std::vector<TensorView> views = {TensorView(table.data(), DType::kF32, {2, 3})};
  Evaluator evaluator(parse_score("t[head, q_idx - 1] + 1.0", aux), views, {});
  Variables at;
  at.head = 1;
  at.q_idx = 3;
  EXPECT_EQ(evaluator.number(at), 7);
  EXPECT_EQ(evaluator.index_error(), nullptr);
  at.q_idx = 0;
  EXPECT_EQ(evaluator.number(at), 1);
  ASSERT_NE(evaluator.index_error(), nullptr);
  EXPECT_EQ(evaluator.index_error()->aux, "t");
  EXPECT_EQ(evaluator.index_error()->dimension, 1);
  EXPECT_EQ(evaluator.index_error()->index, -1);
  EXPECT_EQ(evaluator.index_error()->size, 3);
  at.q_idx = 4;  // the first error stays until it is cleared
  evaluator.number(at);
  EXPECT_EQ(evaluator.index_error()->index, -1);
  evaluator.clear_error();
  evaluator.number(at);
  EXPECT_EQ(evaluator.index_error()->index, 3);
}

TEST(ExprEvaluate, ReadsEveryDtype) {
  const double f64[] = {0, 0.1};
  const uint16_t f16[] = {0, 0xc100};   // -2.5
  const uint16_t bf16[] = {0, 0x4049};  // 3.140625
  const int32_t i32[] = {0, -7};
  const int64_t i64[] = {0, int64_t{1} << 40};
  Variables at;
  const auto read = [&at](const TensorView& view, bool is_float) {
    Evaluator evaluator(parse_score("t[1]", std::vector<AuxSignature>{{"t", 1, is_float}}),
                        std::vector<TensorView>{view}, {});
    return evaluator.number(at);
  };
  EXPECT_EQ(read(TensorView(f64, DType::kF64, {2}), true), 0.1);
  EXPECT_EQ(read(TensorView(f16, DType::kF16, {2}), true), -2.5);
  EXPECT_EQ(read(TensorView(bf16, DType::kBF16, {2}), true), 3.140625);
  EXPECT_EQ(read(TensorView(i32, DType::kI32, {2}), false), -7);
  EXPECT_EQ(read(TensorView(i64, DType::kI64, {2}), false), 0x1p40);
  EXPECT_THROW(read(TensorView(i64, DType::kI64, {2}), true), Error);
  EXPECT_THROW(read(TensorView(f64, DType::kF64, {2, 1}), true), Error);
}

TEST(ExprEvaluate, IntegerOverflowWraps) {
  Variables at;
  at.q_idx = std::numeric_limits<int64_t>::max();
  const auto holds = [&at](const std::string& text) {
    return Evaluator(parse_mask(text, {}), {}, {}).truth(at);
  };
  EXPECT_TRUE(holds("q_idx + 1 < 0"));
  EXPECT_TRUE(holds("(-q_idx - 1) / (k_idx - 1) == -q_idx - 1"));
  EXPECT_TRUE(holds("(-q_idx - 1) % (k_idx - 1) == 0"));
  EXPECT_TRUE(holds("abs(-q_idx - 1) < 0"));
  EXPECT_TRUE(holds("int(1e300) == q_idx"));
  EXPECT_TRUE(holds("int(-1e300) == -q_idx - 1"));
}

TEST(ExprBuilder, SimplifiesWhatIsExact) {
  const auto same = [](const std::string& a, const std::string& b) {
    const auto aux = Data::signatures();
    return parse_score(a, aux) == parse_score(b, aux);
  };
  EXPECT_TRUE(same("score * 1 + f[q_idx + 0]", "score + f[q_idx]"));
  EXPECT_TRUE(same("score + 0 * i[q_idx]", "score + 0.0"));
  EXPECT_TRUE(same("q_idx < 3 ? score : score", "score"));
  EXPECT_TRUE(same("1 ? score : f[0]", "score"));
  EXPECT_TRUE(same("-(-score)", "score"));
  EXPECT_TRUE(same("!!(q_idx < 3)", "q_idx < 3"));
  EXPECT_TRUE(same("!(q_idx < 3)", "q_idx >= 3"));
  EXPECT_TRUE(same("q_idx - q_idx", "0"));
  EXPECT_TRUE(same("q_idx + 2 - 5", "q_idx - 3"));
  EXPECT_TRUE(same("q_idx < 3 && 1", "q_idx < 3"));
  EXPECT_TRUE(same("q_idx < 3 || (q_idx < 3 && k_idx < 2)", "q_idx < 3"));
  EXPECT_TRUE(same("(q_idx < 3) == 0", "q_idx >= 3"));
  EXPECT_TRUE(same("floor(float(q_idx))", "float(q_idx)"));
  EXPECT_TRUE(same("2 * score", "score * 2.0"));
  EXPECT_TRUE(same("sqrt(4.0) + 0.5", "2.5"));
  // What NaN, infinity or -0.0 would tell apart stays.
  EXPECT_FALSE(same("score * 0.0", "0.0"));
  EXPECT_FALSE(same("score - score", "0.0"));
  EXPECT_FALSE(same("score + 0.0", "score"));
  EXPECT_FALSE(same("!(score < 3)", "score >= 3"));
}

TEST(ExprBuilder, EqualSubtreesAreOneNode) {
  const Expr expr = parse_score("exp(score) * exp(score) + tanh(exp(score))", {});
  EXPECT_EQ(expr.nodes.size(), 5u);  // score, exp, *, tanh, +
}

TEST(ExprBuilder, RefusesTypesWithoutAConversion) {
  ExprBuilder builder;
  const auto score = builder.variable(Variable::kScore);
  const auto two = builder.int_const(2);
  EXPECT_THROW(builder.binary(Op::kBitAnd, score, two), Error);
  EXPECT_THROW(builder.load({"t", 1, true}, std::vector{score}), Error);
  EXPECT_THROW(builder.load({"t", 2, true}, std::vector{two}), Error);
  builder.load({"t", 1, true}, std::vector{two});
  EXPECT_THROW(builder.load({"t", 1, false}, std::vector{two}), Error);
}

TEST(ExprSubstitute, SimplifyIsIdempotentAndKeepsTheMeaning) {
  const Data data(5);
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Generator generator(seed, data, {.nonfinite = true, .large_ints = true});
    const Expr expr = parse_score(generator.number(4).text, Data::signatures());
    EXPECT_TRUE(simplify(expr) == expr);
  }
}

TEST(ExprSubstitute, ComposeFeedsTheInnerScoreToTheOuter) {
  const Data data(6);
  const auto aux = Data::signatures();
  const Expr inner = parse_score("score * f[head] + param.u", aux);
  const Expr outer = parse_score("score < 0 ? 0.5 * score : tanh(score) + f[head] * param.w", aux);
  const Expr both = compose(outer, inner);
  EXPECT_EQ(both.aux.size(), 1u);
  EXPECT_EQ(both.params.size(), 2u);
  Evaluator evaluate_both(both, data.views(both), data.param_values(both));
  Evaluator evaluate_inner(inner, data.views(inner), data.param_values(inner));
  Evaluator evaluate_outer(outer, data.views(outer), data.param_values(outer));
  std::mt19937_64 random(7);
  for (int n = 0; n < 50; ++n) {
    Variables at = random_variables(random);
    const double result = evaluate_both.number(at);
    at.score = evaluate_inner.number(at);
    EXPECT_EQ(result, evaluate_outer.number(at));
  }
}

TEST(ExprSubstitute, ConjunctsAndConjunctionAreInverse) {
  const Data data(8);
  std::mt19937_64 random(9);
  size_t most = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Generator generator(seed, data, {.score = false});
    const Expr mask = parse_mask(generator.boolean(4).text, Data::signatures());
    const std::vector<Expr> parts = conjuncts(mask);
    most = std::max(most, parts.size());
    const Expr again = conjunction(parts);
    Evaluator evaluate(mask, data.views(mask), data.param_values(mask));
    Evaluator evaluate_again(again, data.views(again), data.param_values(again));
    for (int n = 0; n < 10; ++n) {
      const Variables at = random_variables(random);
      ASSERT_EQ(evaluate.truth(at), evaluate_again.truth(at));
    }
  }
  EXPECT_GE(most, 3u);
  EXPECT_EQ(conjuncts(parse_mask("!(q_idx < 2 || k_idx < 3) && head == 1", {})).size(), 3u);
  EXPECT_TRUE(conjunction({}) == parse_mask("1", {}));
}

TEST(WholeParams, StandInTheExpressionAsIfTheyWereWritten) {
  const Expr expr = parse_mask(
      "k_idx >= q_idx - int(param.left) && floordiv(k_idx, int(param.chunk)) < param.left", {});
  ASSERT_EQ(expr.params, (std::vector<std::string>{"left", "chunk"}));
  const double values[] = {1099511627777.0, 3.0};  // the first is no float32
  EXPECT_EQ(with_whole_params(expr, values),
            parse_mask("k_idx >= q_idx - 1099511627777 && floordiv(k_idx, 3) < param.left", {}));
}

}  // namespace
}  // namespace flashtile::variant
