// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "unit/expr_random.hpp"
#include "variant/expr/derivative.hpp"
#include "variant/expr/evaluate.hpp"
#include "variant/expr/parse.hpp"

namespace flashtile::variant {
namespace {

using testing::Data;
using testing::Generator;
using testing::random_variables;

double slope(const std::string& text, double score, int64_t q_idx = 0) {
  Variables at;
  at.score = score;
  at.q_idx = q_idx;
  Evaluator evaluator(derivative_score(parse_score(text, {})), {}, {});
  return evaluator.number(at);
}

// Central differences of two steps, where they agree; NaN near a kink.
template <typename F>
double finite_difference(F f) {
  const double wide = (f(2e-4) - f(-2e-4)) / 4e-4;
  const double narrow = (f(1e-4) - f(-1e-4)) / 2e-4;
  const double left = (f(0) - f(-1e-4)) / 1e-4;
  const double right = (f(1e-4) - f(0)) / 1e-4;
  const double size = 1 + std::fabs(narrow);
  const bool smooth =
      std::fabs(wide - narrow) < 1e-4 * size && std::fabs(left - right) < 0.1 * size;
  return smooth ? narrow + (narrow - wide) / 3 : NAN;
}

TEST(ExprDerivative, RulesAgreeWithCalculus) {
  const double x = 0.7;
  EXPECT_DOUBLE_EQ(slope("score", x), 1);
  EXPECT_DOUBLE_EQ(slope("q_idx * 2.0", x), 0);
  EXPECT_DOUBLE_EQ(slope("3 * score - 1", x), 3);
  EXPECT_DOUBLE_EQ(slope("score * score * score", x), 3 * x * x);
  EXPECT_DOUBLE_EQ(slope("1 / score", x), -1 / (x * x));
  EXPECT_DOUBLE_EQ(slope("exp(2 * score)", x), 2 * std::exp(2 * x));
  EXPECT_DOUBLE_EQ(slope("log(score)", x), 1 / x);
  EXPECT_DOUBLE_EQ(slope("log2(score)", x), 1 / (x * std::log(2)));
  EXPECT_NEAR(slope("tanh(score)", x), 1 / (std::cosh(x) * std::cosh(x)), 1e-15);
  EXPECT_NEAR(slope("sigmoid(score)", x), std::exp(-x) / ((1 + std::exp(-x)) * (1 + std::exp(-x))),
              1e-15);
  EXPECT_DOUBLE_EQ(slope("sqrt(score)", x), 0.5 / std::sqrt(x));
  EXPECT_DOUBLE_EQ(slope("sin(score)", x), std::cos(x));
  EXPECT_DOUBLE_EQ(slope("cos(score)", x), -std::sin(x));
  EXPECT_DOUBLE_EQ(slope("pow(score, 3.0)", x), 3 * x * x);
  EXPECT_DOUBLE_EQ(slope("pow(score, -0.5)", x), -0.5 * std::pow(x, -1.5));
  EXPECT_DOUBLE_EQ(slope("pow(2.0, score)", x), std::log(2) * std::pow(2, x));
  EXPECT_DOUBLE_EQ(slope("pow(score, score)", x), std::pow(x, x) * (std::log(x) + 1));
  EXPECT_DOUBLE_EQ(slope("floor(score) + score", x), 1);
  EXPECT_DOUBLE_EQ(slope("int(score * 10) * 0.1", x), 0);
  EXPECT_DOUBLE_EQ(slope("score % 0.3", x), 1);
  EXPECT_DOUBLE_EQ(slope("5.0 % score", x), -7);
  EXPECT_DOUBLE_EQ(slope("-5.0 % score", x), 7);
}

TEST(ExprDerivative, ChosenSidesAtPointsWithoutDerivative) {
  EXPECT_EQ(slope("abs(score)", 0), 0);
  EXPECT_EQ(slope("abs(score)", -2), -1);
  EXPECT_EQ(slope("max(3 * score, score)", 2), 3);
  EXPECT_EQ(slope("max(3 * score, score)", -2), 1);
  EXPECT_EQ(slope("max(3 * score, score)", 0), 2);  // equal: half each
  EXPECT_EQ(slope("min(3 * score, score)", 0), 2);
  EXPECT_EQ(slope("max(score, 0)", 0), 0.5);
  EXPECT_EQ(slope("pow(score, 0.0)", 0), 0);
  EXPECT_EQ(slope("pow(score, q_idx)", 0, 0), 0);  // no 0 * 0^-1
  EXPECT_EQ(slope("pow(score, q_idx)", -3, 2), -6);
  EXPECT_EQ(slope("pow(-2.0, score)", 2), 0);  // no logarithm of a negative base
}

TEST(ExprDerivative, BranchesNotTakenGiveExactZeros) {
  EXPECT_EQ(slope("score > 0 ? sqrt(score) : 0.0", -1), 0);
  EXPECT_EQ(slope("score > 0 ? 1.0 : log(-score)", 2), 0);
  // The outer function has an infinite slope where the branch is not taken.
  EXPECT_EQ(slope("sqrt(score > 0 ? score : 0.0)", -1), 0);
  EXPECT_EQ(slope("sqrt(max(score, 0))", -1), 0);
  EXPECT_EQ(slope("1 / (score > 0 ? score : 0.0) + 2 * score", -1), 2);
  EXPECT_EQ(slope("exp(1e4 * ((q_idx == 0 ? 1.0 : score) + (q_idx == 0 ? 2.0 : score)))", 1), 0);
}

TEST(ExprDerivative, RandomScoresAgreeWithFiniteDifferences) {
  const Data data(11);
  std::mt19937_64 random(12);
  int compared = 0, skipped = 0;
  double largest = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Generator generator(seed, data);
    const auto witness = generator.number(1 + static_cast<int>(seed % 4));
    const Expr expr = parse_score(witness.text, Data::signatures());
    const Expr derivative = derivative_score(expr);
    Evaluator evaluator(derivative, data.views(derivative), data.param_values(derivative));
    for (int n = 0; n < 10; ++n) {
      const Variables at = random_variables(random);
      const double expected = finite_difference([&](double step) {
        Variables moved = at;
        moved.score += step;
        return witness.value(moved);
      });
      const double found = evaluator.number(at);
      ASSERT_TRUE(std::isfinite(found)) << witness.text;
      if (std::isnan(expected) || std::fabs(expected) > 1e4) {
        ++skipped;
        continue;
      }
      ++compared;
      largest = std::fmax(largest, std::fabs(expected));
      ASSERT_NEAR(found, expected, 1e-5 * (1 + std::fabs(expected) + std::fabs(witness.value(at))))
          << witness.text << " at score " << at.score;
    }
  }
  EXPECT_GT(compared, 10 * skipped);
  EXPECT_GT(largest, 1);
}

TEST(ExprDerivative, LoadSitesAgreeWithFiniteDifferencesOfTheTensors) {
  Data data(13);
  std::mt19937_64 random(14);
  int num_sites = 0, num_inactive = 0, compared = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Generator generator(seed, data);
    const auto witness = generator.number(2 + static_cast<int>(seed % 3));
    const Expr expr = parse_score(witness.text, Data::signatures());
    const std::vector<LoadSite> sites = load_gradients(expr);
    num_sites += static_cast<int>(sites.size());
    for (int n = 0; n < 5; ++n) {
      const Variables at = random_variables(random);
      // What the sites scatter into dense gradients ...
      std::vector<double> df(Data::kF), dg(Data::kG0 * Data::kG1);
      for (const LoadSite& site : sites) {
        const auto evaluate = [&](const Expr& part) {
          return Evaluator(part, data.views(part), data.param_values(part));
        };
        const double derivative = evaluate(site.derivative).number(at);
        if (!evaluate(site.active).truth(at)) {
          ++num_inactive;
          ASSERT_EQ(derivative, 0) << witness.text;
          continue;
        }
        std::vector<int64_t> index;
        for (const Expr& part : site.index) index.push_back(evaluate(part).integer(at));
        if (index.size() == 1) {
          df.at(static_cast<size_t>(index[0])) += derivative;
        } else {
          dg.at(static_cast<size_t>(index[0] + Data::kG0 * index[1])) += derivative;
        }
      }
      // ... is the difference that moving an element makes.
      const auto compare = [&](auto* element, double found) {
        const auto kept = *element;
        const double expected = finite_difference([&](double step) {
          *element = kept + static_cast<std::remove_reference_t<decltype(kept)>>(step);
          // A float element moves by the rounded step.
          const double scale =
              step == 0 ? 1 : (static_cast<double>(*element) - static_cast<double>(kept)) / step;
          const double result = witness.value(at);
          *element = kept;
          return step == 0 || scale == 1 ? result
                                         : witness.value(at) + (result - witness.value(at)) / scale;
        });
        if (std::isnan(expected)) return;
        ++compared;
        const double tolerance = sizeof(*element) == 4 ? 1e-3 : 1e-5;
        ASSERT_NEAR(found, expected,
                    tolerance * (1 + std::fabs(expected) + std::fabs(witness.value(at))))
            << witness.text;
      };
      for (size_t e = 0; e < df.size(); ++e) compare(&data.f[2 * e], df[e]);
      for (size_t e = 0; e < dg.size(); ++e) compare(&data.g[e], dg[e]);
    }
  }
  EXPECT_GT(num_sites, 200);
  EXPECT_GT(num_inactive, 50);
  EXPECT_GT(compared, 50000);
}

TEST(ExprDerivative, LoadsOfOneElementAreOneSite) {
  const std::vector<AuxSignature> aux = {{"t", 1, true}, {"n", 1, false}};
  const Expr expr = parse_score("score * t[head] + t[head] * t[n[head]] + (t[q_idx] > 0)", aux);
  const std::vector<LoadSite> sites = load_gradients(expr);
  ASSERT_EQ(sites.size(), 2u);  // not t[q_idx], which is only compared
  EXPECT_TRUE(sites[0].index[0].aux.empty());
  EXPECT_EQ(sites[1].index[0].aux.size(), 1u);  // n[head]
  EXPECT_TRUE(sites[0].active == parse_mask("1", {}));
}

TEST(ExprDerivative, SitesKnowTheirPathCondition) {
  const std::vector<AuxSignature> aux = {{"t", 1, true}};
  const std::vector<LoadSite> sites =
      load_gradients(parse_score("k_idx < 4 ? (q_idx < 3 ? t[q_idx] : 0.0) : score", aux));
  ASSERT_EQ(sites.size(), 1u);
  EXPECT_TRUE(sites[0].active == parse_mask("k_idx < 4 && q_idx < 3", {}));
}

}  // namespace
}  // namespace flashtile::variant
