// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "unit/expr_random.hpp"
#include "variant/expr/access.hpp"
#include "variant/expr/affine.hpp"
#include "variant/expr/derivative.hpp"
#include "variant/expr/evaluate.hpp"
#include "variant/expr/linear.hpp"
#include "variant/expr/parse.hpp"
#include "variant/expr/score_line.hpp"
#include "variant/expr/substitute.hpp"

namespace flashtile::variant {
namespace {

using testing::Data;
using testing::Generator;
using testing::random_variables;

const Data& data() {
  static const Data instance(21);
  return instance;
}

int64_t int_value(const Expr& expr, const Variables& at) {
  return Evaluator(expr, data().views(expr), data().param_values(expr)).integer(at);
}

// Every pair of a rectangle is kept by the mask just where the band says so.
void expect_band(const std::string& text) {
  const Expr mask = parse_mask(text, Data::signatures());
  const auto band = match_band(mask);
  ASSERT_TRUE(band.has_value()) << text;
  Evaluator evaluator(mask, data().views(mask), data().param_values(mask));
  Variables at;
  at.seqlen_q = 12;
  at.seqlen_k = 17;
  at.query_offset = 5;
  at.head = 2;
  for (const Expr* bound : {&band->lo, &band->hi}) {
    if (bound->empty()) continue;
    EXPECT_FALSE(depends_on(*bound, bound->root(), Variable::kQIdx)) << text;
    EXPECT_FALSE(depends_on(*bound, bound->root(), Variable::kKIdx)) << text;
  }
  int kept = 0;
  for (at.q_idx = 0; at.q_idx < at.seqlen_q; ++at.q_idx) {
    for (at.k_idx = 0; at.k_idx < at.seqlen_k; ++at.k_idx) {
      const int64_t distance = at.k_idx - at.q_idx;
      const bool inside = (band->lo.empty() || int_value(band->lo, at) <= distance) &&
                          (band->hi.empty() || distance <= int_value(band->hi, at));
      ASSERT_EQ(evaluator.truth(at), inside) << text << ": " << at.q_idx << " " << at.k_idx;
      kept += inside;
    }
  }
  EXPECT_LT(kept, 12 * 17) << text;
}

TEST(ExprAffine, BandsAreRecognisedInEveryForm) {
  for (const char* text : {"k_idx <= q_idx",
                           "k_idx <= q_idx + query_offset",
                           "q_idx >= k_idx",
                           "q_idx > k_idx - 3",
                           "k_idx < q_idx",
                           "q_idx - k_idx <= 5",
                           "5 > q_idx - k_idx",
                           "k_idx - q_idx == 2",
                           "abs(q_idx - k_idx) < 3",
                           "3 >= abs(k_idx - q_idx + head)",
                           "abs(k_idx - q_idx) <= -1",
                           "q_idx + seqlen_k - seqlen_q - k_idx >= 0",
                           "2 * k_idx - 2 * q_idx <= 7",
                           "2 * (q_idx - k_idx) < 7",
                           "-3 * k_idx >= -3 * q_idx - 8",
                           "3 * k_idx > 3 * q_idx - 8",
                           "abs(2 * k_idx - 2 * q_idx) < 5",
                           "q_idx - k_idx <= int(param.u * 10)",
                           "k_idx <= q_idx + i[head] % 4",
                           "k_idx - q_idx < head * 2 - batch",
                           "!(k_idx > q_idx)",
                           "k_idx + 2 * q_idx - head < 3 * q_idx"}) {
    expect_band(text);
  }
}

TEST(ExprAffine, OtherMasksAreNotBands) {
  for (const char* text :
       {"k_idx < 5", "q_idx + k_idx < 5", "k_idx != q_idx", "2 * k_idx == 2 * q_idx",
        "abs(q_idx - k_idx) > 3", "k_idx <= 2 * q_idx", "k_idx - q_idx < i[q_idx % 9]",
        "(q_idx - k_idx) % 4 == 0", "k_idx <= q_idx && q_idx < 3", "k_idx * 1.0 <= q_idx",
        "head < 2", "k_idx <= q_idx + max(q_idx, 3)", "1"}) {
    EXPECT_FALSE(match_band(parse_mask(text, Data::signatures()))) << text;
  }
}

TEST(ExprAffine, LinearFormsHaveTheValueOfTheNode) {
  std::mt19937_64 random(22);
  int with_both = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Generator generator(seed, data(), {.score = false, .large_ints = seed % 2 == 0});
    const std::string text = "3 * (q_idx - " + generator.integer(2).text + ") - (k_idx + " +
                             generator.integer(3).text + " - 2 * k_idx)";
    const Expr expr = parse_mask(text + " == 123456", Data::signatures());
    if (expr.nodes.size() < 3) continue;
    const int32_t node = expr.args(expr.root())[0];
    if (expr.node(node).type != Type::kInt) continue;
    const LinearForm form = linear_form(expr, node);
    with_both += form.q != 0 && form.k != 0;
    const Variables at = random_variables(random);
    const auto value = [&](int32_t idx) {
      return static_cast<uint64_t>(int_value(subexpression(expr, idx), at));
    };
    uint64_t sum = static_cast<uint64_t>(form.q) * static_cast<uint64_t>(at.q_idx) +
                   static_cast<uint64_t>(form.k) * static_cast<uint64_t>(at.k_idx) +
                   static_cast<uint64_t>(form.constant);
    for (const auto& term : form.terms)
      sum += static_cast<uint64_t>(term.factor) * value(term.node);
    ASSERT_EQ(sum, value(node)) << text;
  }
  EXPECT_GT(with_both, 300);
}

AccessClass class_of(const std::string& text) {
  const std::vector<AuxSignature> aux = {{"t", 1, true}, {"u", 2, true}, {"n", 1, false}};
  const std::vector<LoadSite> sites = load_gradients(parse_score("score + " + text, aux));
  EXPECT_EQ(sites.size(), 1u) << text;
  const Expr expr = parse_score(text, aux);
  EXPECT_EQ(access_class(expr, expr.root()), access_class(sites[0].index)) << text;
  return access_class(sites[0].index);
}

TEST(ExprAccess, ClassesFollowTheIndexExpressions) {
  EXPECT_EQ(class_of("t[head]"), AccessClass::kScalar);
  EXPECT_EQ(class_of("t[3]"), AccessClass::kScalar);
  EXPECT_EQ(class_of("t[n[batch] + seqlen_k]"), AccessClass::kScalar);
  EXPECT_EQ(class_of("t[q_idx]"), AccessClass::kRow);
  EXPECT_EQ(class_of("u[head, q_idx / 2]"), AccessClass::kRow);
  EXPECT_EQ(class_of("u[k_idx, n[k_idx] % 3]"), AccessClass::kColumn);
  EXPECT_EQ(class_of("u[head, q_idx - k_idx + seqlen_k - 1]"), AccessClass::kDiagonal);
  EXPECT_EQ(class_of("u[n[max(q_idx - k_idx, 0)], head]"), AccessClass::kDiagonal);
  EXPECT_EQ(class_of("t[(k_idx - q_idx) * 2 / 3 + head]"), AccessClass::kDiagonal);
  EXPECT_EQ(class_of("t[min(abs(k_idx - q_idx), 5) + (q_idx < k_idx + 2)]"),
            AccessClass::kDiagonal);
  EXPECT_EQ(class_of("t[q_idx - k_idx < 2]"), AccessClass::kDiagonal);
  EXPECT_EQ(class_of("t[q_idx < 2 * k_idx]"), AccessClass::kGeneral);
  EXPECT_EQ(class_of("t[q_idx + k_idx]"), AccessClass::kGeneral);
  EXPECT_EQ(class_of("u[q_idx, k_idx]"), AccessClass::kGeneral);
  EXPECT_EQ(class_of("u[q_idx - k_idx, k_idx]"), AccessClass::kGeneral);
  EXPECT_EQ(class_of("t[(q_idx - k_idx) * (q_idx - k_idx)]"), AccessClass::kDiagonal);
  EXPECT_EQ(class_of("t[(q_idx - k_idx) * k_idx]"), AccessClass::kGeneral);
  EXPECT_EQ(class_of("t[q_idx / 2 - k_idx / 2]"), AccessClass::kGeneral);
}

TEST(ExprAccess, KeysOfARowHaveElementsOfTheirOwnWhereAnIndexIsLinearInThem) {
  const std::vector<AuxSignature> aux = {{"t", 1, true}, {"u", 2, true}, {"n", 1, false}};
  const auto is_own = [&](const std::string& text) {
    return is_own_of_key(load_gradients(parse_score("score + " + text, aux)).at(0).index);
  };
  EXPECT_TRUE(is_own("t[k_idx]"));
  EXPECT_TRUE(is_own("u[head, q_idx - k_idx + seqlen_k - 1]"));
  EXPECT_TRUE(is_own("u[k_idx / 2, 3 * k_idx + n[q_idx]]"));
  EXPECT_FALSE(is_own("u[head, q_idx]"));
  EXPECT_FALSE(is_own("t[k_idx / 2]"));
  EXPECT_FALSE(is_own("t[min(q_idx - k_idx, 7)]"));
  EXPECT_FALSE(is_own("t[k_idx + n[k_idx]]"));
  EXPECT_FALSE(is_own("t[k_idx + int(score)]"));
  EXPECT_FALSE(is_own("t[k_idx - q_idx - k_idx]"));
}

TEST(ExprAccess, ALineIsASumWithTheScoreThatFollowsOneLine) {
  const std::vector<AuxSignature> aux = {{"t", 1, true}, {"u", 2, true}, {"n", 1, false}};
  const auto line = [&](const std::string& text) { return score_line(parse_score(text, aux)); };
  const auto shift = [&](const std::string& text) {
    const std::optional<ScoreLine> found = line(text);
    return found ? found->shift : -1;
  };
  EXPECT_EQ(shift("score + u[head, q_idx - k_idx + 9]"), 1);
  EXPECT_EQ(shift("t[n[k_idx - q_idx + 9]] + score - 0.5 * float(abs(q_idx - k_idx))"), 1);
  EXPECT_EQ(shift("score + t[k_idx]"), 0);
  EXPECT_EQ(shift("score + t[head] - 2"), 0);
  EXPECT_EQ(shift("score + t[q_idx]"), -1);
  EXPECT_EQ(shift("score + t[q_idx - k_idx] + u[head, k_idx]"), -1);
  EXPECT_EQ(shift("2 * score + t[k_idx]"), -1);
  EXPECT_EQ(shift("t[k_idx] - score"), -1);
  EXPECT_EQ(shift("score + tanh(score) + t[k_idx]"), -1);
  EXPECT_EQ(shift("score + score"), -1);
  EXPECT_EQ(shift("k_idx > q_idx ? score : score + t[k_idx]"), -1);
  EXPECT_EQ(line("score - (t[k_idx] - 1) + t[3]")->term,
            parse_score("-(t[k_idx] - 1) + t[3]", aux));
}

TEST(ExprAccess, ScoreIsFoundWhereItMatters) {
  EXPECT_TRUE(reads_score(parse_score("q_idx + tanh(score)", {})));
  EXPECT_FALSE(reads_score(parse_score("q_idx + (1 ? 2 : score)", {})));
}

}  // namespace
}  // namespace flashtile::variant
