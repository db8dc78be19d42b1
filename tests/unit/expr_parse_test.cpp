// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "files/tensor_file.hpp"
#include "flashtile/error.hpp"
#include "variant/expr/evaluate.hpp"
#include "variant/expr/parse.hpp"

namespace flashtile::variant {
namespace {

const std::vector<AuxSignature> kAux = {{"slope", 1, true}, {"table", 2, true}, {"doc", 1, false}};

std::string score_error(const std::string& text) {
  try {
    parse_score(text, kAux);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

std::string mask_error(const std::string& text) {
  try {
    parse_mask(text, kAux);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

int64_t int_value(const std::string& text) {
  // A float root would hide large integers, so the integer is compared inside a mask.
  Variables at;
  at.q_idx = 7;
  at.k_idx = 3;
  Evaluator evaluator(parse_score(text, {}), {}, {});
  return static_cast<int64_t>(evaluator.number(at));
}

double value(const std::string& text, double score = 0) {
  Variables at;
  at.q_idx = 7;
  at.k_idx = 3;
  at.score = score;
  Evaluator evaluator(parse_score(text, {}), {}, {});
  return evaluator.number(at);
}

TEST(ExprParse, PrecedenceIsThatOfC) {
  // Each text with the value that a C compiler gives the same characters.
  EXPECT_EQ(int_value("1 | 6 ^ 3 & 2"), 1 | (6 ^ (3 & 2)));
  EXPECT_EQ(int_value("1 << 2 + 1"), 8);
  EXPECT_EQ(int_value("1 + 2 << 1"), 6);
  EXPECT_EQ(int_value("7 & 3 == 3"), 1);  // 7 & (3 == 3)
  EXPECT_EQ(int_value("1 < 2 << 1"), 1);
  EXPECT_EQ(int_value("2 == 2 < 3"), 0);  // 2 == (2 < 3)
  EXPECT_EQ(int_value("0 && 1 || 1"), 1);
  EXPECT_EQ(int_value("1 || 1 && 0"), 1);
  EXPECT_EQ(int_value("10 - 4 - 3"), 3);
  EXPECT_EQ(int_value("100 / 5 * 2"), 40);
  EXPECT_EQ(int_value("-7 / 2"), -3);
  EXPECT_EQ(int_value("-7 % 3"), -1);
  EXPECT_EQ(int_value("0 ? 1 : 0 ? 2 : 3"), 3);
  EXPECT_EQ(int_value("1 ? 0 ? 4 : 5 : 6"), 5);
  EXPECT_EQ(int_value("!0 + 1"), 2);
  EXPECT_EQ(int_value("- - 4"), 4);
  EXPECT_EQ(int_value("-(q_idx < k_idx) + +(q_idx > k_idx)"), 1);
  EXPECT_EQ(int_value("1 | 2 || 0"), 1);
}

TEST(ExprParse, TensorWithoutDimensionsIsReadByItsName) {
  const std::vector<AuxSignature> aux = {{"s", 0, true}, {"n", 0, false}};
  const float s = 2.5f;
  const int64_t n = -7;
  const TensorView tensors[] = {{&s, DType::kF32, {}}, {&n, DType::kI64, {}}};
  for (const char* text : {"s * n + 1", "s[] * n[] + 1"}) {
    EXPECT_EQ(Evaluator(parse_score(text, aux), tensors, {}).number({}), 2.5 * -7 + 1) << text;
  }
  EXPECT_EQ(parse_score("s", aux), parse_score("s[]", aux));
  try {
    parse_score("s[0]", aux);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "score expression, column 1: aux tensor 's' takes 0 indices, found 1");
  }
}

TEST(ExprParse, IntegerAndFloatRulesOfTheLanguage) {
  EXPECT_EQ(value("q_idx / 2"), 3);
  EXPECT_EQ(value("q_idx / 2.0"), 3.5);
  EXPECT_EQ(value("floordiv(-q_idx, 2)"), -4);
  EXPECT_EQ(value("floormod(-q_idx, 4)"), 1);
  EXPECT_EQ(value("-q_idx % 4"), -3);
  EXPECT_EQ(value("q_idx / 0"), 0);
  EXPECT_EQ(value("q_idx % 0 + floordiv(q_idx, 0) + floormod(q_idx, 0)"), 0);
  EXPECT_EQ(value("floor(q_idx / 2.0)"), 3);
  EXPECT_EQ(value("int(-2.75)"), -2);
  EXPECT_EQ(value("int(0.0 / 0.0)"), 0);
  EXPECT_EQ(value("float(7) / 2"), 3.5);
  EXPECT_EQ(value("int(2.75) / 2"), 1);
  EXPECT_EQ(value("1 << 65"), 2);
  EXPECT_EQ(value("-16 >> 2"), -4);
  EXPECT_EQ(value("pow(2, 10)"), 1024);
  EXPECT_EQ(value("select(k_idx, 5, 1.5)"), 5);
  EXPECT_EQ(value("score ? 1 : 2", 0.5), 1);
  EXPECT_EQ(value("(q_idx == 7) * 2.5"), 2.5);
  EXPECT_EQ(value(".5 + 1.e1 + 1e-1 + 2.5E+1"), 0.5 + 10 + 0.1 + 25);
  EXPECT_EQ(value("abs(k_idx - q_idx) + min(q_idx, 3) + max(q_idx, 2.5)"), 14);
  EXPECT_EQ(value("\t q_idx\n+\r\n1 "), 8);
}

TEST(ExprParse, RootsAreFloatForScoresAndBoolForMasks) {
  EXPECT_EQ(parse_score("q_idx", {}).nodes.back().type, Type::kFloat);
  EXPECT_EQ(parse_score("q_idx < 3", {}).nodes.back().type, Type::kFloat);
  EXPECT_EQ(parse_mask("q_idx", {}).nodes.back().type, Type::kBool);
  EXPECT_EQ(parse_mask("doc[q_idx] * 1.5", kAux).nodes.back().type, Type::kBool);
}

TEST(ExprParse, ListsOnlyWhatIsRead) {
  const Expr expr = parse_score("score + doc[q_idx] * param.a - param.b * param.a", kAux);
  ASSERT_EQ(expr.aux.size(), 1u);
  EXPECT_EQ(expr.aux[0], kAux[2]);
  EXPECT_EQ(expr.params, (std::vector<std::string>{"a", "b"}));
}

TEST(ExprParse, ErrorsNameTheColumn) {
  const std::string known =
      "known: score, batch, head, head_kv, q_idx, k_idx, seqlen_q, seqlen_k, query_offset, "
      "slope[], table[], doc[]";
  EXPECT_EQ(score_error("score + foo"), "score expression, column 9: unknown name 'foo'; " + known);
  EXPECT_EQ(mask_error("score > 0"), "mask expression, column 1: a mask cannot read the score");
  EXPECT_EQ(score_error("(score + 1"),
            "score expression, column 11: expected ')' for the '(' of column 1, found the end of "
            "the text");
  EXPECT_EQ(score_error("max(score, 1]"),
            "score expression, column 13: expected ')' for the '(' of column 4, found ']'");
  EXPECT_EQ(score_error("slope[head"),
            "score expression, column 11: expected ']' for the '[' of column 6, found the end of "
            "the text");
  EXPECT_EQ(score_error("score ? 1"),
            "score expression, column 10: expected ':' for the '?' of column 7, found the end of "
            "the text");
  EXPECT_EQ(score_error("max(score)"),
            "score expression, column 1: 'max' takes 2 arguments, found 1");
  EXPECT_EQ(score_error("1 + exp()"),
            "score expression, column 5: 'exp' takes 1 argument, found 0");
  EXPECT_EQ(score_error("table[head]"),
            "score expression, column 1: aux tensor 'table' takes 2 indices, found 1");
  EXPECT_EQ(score_error("slope[head, 1]"),
            "score expression, column 1: aux tensor 'slope' takes 1 index, found 2");
  EXPECT_EQ(score_error("table[head, score]"),
            "score expression, column 13: an index of aux tensor 'table' is a float; use int()");
  EXPECT_EQ(score_error("bias[head]"),
            "score expression, column 1: unknown aux tensor 'bias'; known: slope, table, doc");
  EXPECT_EQ(score_error("slope + 1"),
            "score expression, column 1: aux tensor 'slope' needs an index in brackets");
  EXPECT_EQ(score_error("q_idx + score & 1"),
            "score expression, column 15: '&' takes integers, found a float; use int()");
  EXPECT_EQ(score_error("floordiv(q_idx, 2.0)"),
            "score expression, column 17: 'floordiv' takes integers, found a float; use int()");
  EXPECT_EQ(score_error("score + 9223372036854775808"),
            "score expression, column 9: the integer does not fit 64 bits; write it as a float");
  EXPECT_EQ(score_error("1e999"),
            "score expression, column 1: the number is outside the range of a double");
  EXPECT_EQ(score_error("2x"), "score expression, column 2: unexpected 'x' after a number");
  EXPECT_EQ(score_error("score $ 2"), "score expression, column 7: unexpected character '$'");
  EXPECT_EQ(score_error("score \xc3\xa9"),
            "score expression, column 7: unexpected character of code 195");
  EXPECT_EQ(score_error("score = 2"), "score expression, column 7: unexpected character '='");
  EXPECT_EQ(score_error("score score"), "score expression, column 7: unexpected 'score'");
  EXPECT_EQ(score_error("score +"),
            "score expression, column 8: expected a value, found the end of the text");
  EXPECT_EQ(score_error("  "), "score expression, column 3: the text is empty");
  EXPECT_EQ(score_error("aux.t[0]"),
            "score expression, column 1: aux tensors are read by their names alone, as in t[0]");
  EXPECT_EQ(score_error("param.3"), "score expression, column 1: 'param' is used as param.NAME");
  EXPECT_EQ(score_error("param."),
            "score expression, column 7: expected the name of a parameter after 'param.', found "
            "the end of the text");
  EXPECT_EQ(score_error("exp + 1"),
            "score expression, column 1: function 'exp' needs its arguments in parentheses");
  EXPECT_TRUE(
      score_error("erf(score)")
          .starts_with("score expression, column 1: unknown function 'erf'; known: exp, log,"));
}

TEST(ExprParse, NestingAndLengthAreLimited) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '(') + "score" + std::string(depth, ')');
  };
  EXPECT_NO_THROW(parse_score(nested(199), {}));
  EXPECT_EQ(score_error(nested(200)),
            "score expression, column 201: nested deeper than 200 levels");
  EXPECT_EQ(score_error(std::string(100000, '-') + "1"),
            "score expression, column 4097: the expression is longer than 4096 tokens");
  EXPECT_TRUE(score_error(std::string(3000, '!') + "1").ends_with("deeper than 200 levels"));
  std::string chain = "score";
  for (int n = 0; n < 2000; ++n) chain += " + score";
  Evaluator evaluator(parse_score(chain, {}), {}, {});
  Variables at;
  at.score = 0.5;
  EXPECT_EQ(evaluator.number(at), 0.5 * 2001);
}

TEST(ExprParse, EveryGoldenTextParses) {
  int num_texts = 0;
  const std::filesystem::path folder =
      std::filesystem::path(FLASHTILE_SOURCE_DIR) / "tests/golden/attention";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const cli::TensorFile file = cli::read_tensor_file(entry.path().string());
    std::vector<AuxSignature> aux;
    for (const auto& [name, tensor] : file.tensors) {
      if (name.starts_with("aux.")) {
        aux.push_back({name.substr(4), tensor.ndim, is_floating(tensor.dtype)});
      }
    }
    const std::string options = file.metadata.at("options");
    for (const bool is_score : {true, false}) {
      const std::string key = is_score ? "\"score\": \"" : "\"mask\": \"";
      const size_t begin = options.find(key);
      if (begin == std::string::npos) continue;
      const size_t first = begin + key.size();
      const std::string text = options.substr(first, options.find('"', first) - first);
      ++num_texts;
      EXPECT_NO_THROW(is_score ? parse_score(text, aux) : parse_mask(text, aux))
          << entry.path() << ": " << text;
    }
  }
  EXPECT_GE(num_texts, 20);
}

}  // namespace
}  // namespace flashtile::variant
