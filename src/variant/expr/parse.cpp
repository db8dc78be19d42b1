// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/parse.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "variant/expr/builder.hpp"
#include "variant/expr/functions.hpp"
#include "variant/expr/lexer.hpp"

namespace flashtile::variant {
namespace {

using Id = ExprBuilder::Id;

constexpr int kMaxNesting = 200;

struct BinaryOperator {
  std::string_view text;
  int precedence;  // as in C; a larger one binds closer
  Op op;
};

constexpr std::array<BinaryOperator, 18> kOperators = {{
    {"||", 1, Op::kOr},
    {"&&", 2, Op::kAnd},
    {"|", 3, Op::kBitOr},
    {"^", 4, Op::kBitXor},
    {"&", 5, Op::kBitAnd},
    {"==", 6, Op::kEq},
    {"!=", 6, Op::kNe},
    {"<", 7, Op::kLt},
    {"<=", 7, Op::kLe},
    {">", 7, Op::kGt},
    {">=", 7, Op::kGe},
    {"<<", 8, Op::kShl},
    {">>", 8, Op::kShr},
    {"+", 9, Op::kAdd},
    {"-", 9, Op::kSub},
    {"*", 10, Op::kMul},
    {"/", 10, Op::kDiv},
    {"%", 10, Op::kMod},
}};

std::string quoted(const Token& token) {
  if (token.kind == TokenKind::kEnd) return "the end of the text";
  std::string out = "'";  // apart, because GCC 12 warns of overlap in '"'" + std::string'
  out.append(token.text.substr(0, 40));
  return out + "'";
}

std::string plural(int count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

class Parser {
 public:
  Parser(std::string_view text, std::span<const AuxSignature> aux, bool is_score,
         Mentions* mentions)
      : what_(is_score ? "score expression" : "mask expression"),
        aux_(aux),
        is_score_(is_score),
        mentions_(mentions),
        tokens_(tokenize(text, what_)) {}

  Expr run() {
    if (peek().kind == TokenKind::kEnd) fail(peek(), "the text is empty");
    const Id root = ternary();
    if (peek().kind != TokenKind::kEnd) fail(peek(), "unexpected " + quoted(peek()));
    return builder_.build(is_score_ ? builder_.to_float(root) : builder_.to_bool(root));
  }

 private:
  // Counts how deep the parser's own calls are nested.
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxNesting) {
        parser_.fail(parser_.peek(),
                     "nested deeper than " + std::to_string(kMaxNesting) + " levels");
      }
    }
    ~Nesting() { --parser_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };

  [[noreturn]] void fail(const Token& at, const std::string& message) const {
    fail_at(what_, at.column, message);
  }

  const Token& peek() const { return tokens_[at_]; }
  bool at_symbol(std::string_view text) const {
    return peek().kind == TokenKind::kSymbol && peek().text == text;
  }
  const Token& take() { return peek().kind == TokenKind::kEnd ? peek() : tokens_[at_++]; }
  bool take_symbol(std::string_view text) {
    if (!at_symbol(text)) return false;
    ++at_;
    return true;
  }
  void expect_close(std::string_view close, const Token& open) {
    if (take_symbol(close)) return;
    fail(peek(), "expected '" + std::string(close) + "' for the " + quoted(open) + " of column " +
                     std::to_string(open.column) + ", found " + quoted(peek()));
  }

  Id ternary() {
    const Nesting nesting(*this);
    const Id condition = binary(1);
    const Token question = peek();
    if (!take_symbol("?")) return condition;
    const Id yes = ternary();
    if (!take_symbol(":")) {
      fail(peek(), "expected ':' for the '?' of column " + std::to_string(question.column) +
                       ", found " + quoted(peek()));
    }
    const Id no = ternary();
    return builder_.select(condition, yes, no);
  }

  const BinaryOperator* binary_operator() const {
    if (peek().kind != TokenKind::kSymbol) return nullptr;
    const auto* found = std::ranges::find(kOperators, peek().text, &BinaryOperator::text);
    return found == kOperators.end() ? nullptr : &*found;
  }

  Id binary(int lowest) {
    Id left = unary();
    for (;;) {
      const BinaryOperator* found = binary_operator();
      if (found == nullptr || found->precedence < lowest) return left;
      const Token& symbol = take();
      const Id right = binary(found->precedence + 1);
      if (found->op >= Op::kBitAnd && found->op <= Op::kShr) {
        for (const Id side : {left, right}) {
          if (builder_.type(side) == Type::kFloat) {
            fail(symbol, quoted(symbol) + " takes integers, found a float; use int()");
          }
        }
      }
      left = builder_.binary(found->op, left, right);
    }
  }

  Id unary() {
    if (!at_symbol("-") && !at_symbol("!") && !at_symbol("+")) return primary();
    const Nesting nesting(*this);
    const Token& symbol = take();
    const Id value = unary();
    if (symbol.text == "-") return builder_.neg(value);
    if (symbol.text == "!") return builder_.logical_not(value);
    return builder_.type(value) == Type::kBool ? builder_.to_int(value) : value;
  }

  Id primary() {
    const Token& token = take();
    switch (token.kind) {
      case TokenKind::kInt:
        return builder_.int_const(token.int_value);
      case TokenKind::kFloat:
        return builder_.float_const(token.float_value);
      case TokenKind::kName:
        if (token.text == "param" && at_symbol(".")) return param();
        if (at_symbol("(")) return call(token);
        return at_symbol("[") ? element(token) : name(token);
      default:
        break;
    }
    if (token.kind != TokenKind::kSymbol || token.text != "(") {
      fail(token, "expected a value, found " + quoted(token));
    }
    const Id inner = ternary();
    expect_close(")", token);
    return inner;
  }

  // What stands between an opening bracket and its partner.
  std::vector<Id> list(std::string_view close) {
    const Token& open = take();
    std::vector<Id> items;
    columns_.clear();
    if (take_symbol(close)) return items;
    std::vector<Token> first_tokens;
    do {
      first_tokens.push_back(peek());
      items.push_back(ternary());
    } while (take_symbol(","));
    expect_close(close, open);
    columns_ = first_tokens;
    return items;
  }

  Id param() {
    take();
    const Token& token = take();
    if (token.kind != TokenKind::kName) {
      fail(token, "expected the name of a parameter after 'param.', found " + quoted(token));
    }
    if (mentions_ != nullptr) mentions_->params.emplace_back(token.text);
    return builder_.param(token.text);
  }

  Id call(const Token& token) {
    const auto* function = std::ranges::find(kFunctions, token.text, &Function::name);
    if (function == kFunctions.end()) {
      std::string known;
      for (const Function& each : kFunctions) {
        known.append(known.empty() ? "" : ", ").append(each.name);
      }
      fail(token, "unknown function " + quoted(token) + "; known: " + known);
    }
    const std::vector<Id> values = list(")");
    if (static_cast<int>(values.size()) != function->num_arguments) {
      fail(token, quoted(token) + " takes " + plural(function->num_arguments, "argument") +
                      ", found " + std::to_string(values.size()));
    }
    if (function->op == Op::kFloorDiv || function->op == Op::kFloorMod) {
      for (size_t n = 0; n < values.size(); ++n) {
        if (builder_.type(values[n]) == Type::kFloat) {
          fail(columns_[n], quoted(token) + " takes integers, found a float; use int()");
        }
      }
    }
    if (function->op == Op::kSelect) return builder_.select(values[0], values[1], values[2]);
    return values.size() == 1 ? builder_.unary(function->op, values[0])
                              : builder_.binary(function->op, values[0], values[1]);
  }

  Id element(const Token& token) {
    const auto aux = std::ranges::find(aux_, token.text, &AuxSignature::name);
    if (aux == aux_.end()) {
      std::string known;
      for (const AuxSignature& each : aux_)
        known.append(known.empty() ? "" : ", ").append(each.name);
      fail(token, "unknown aux tensor " + quoted(token) +
                      (known.empty() ? "; there are none" : "; known: " + known));
    }
    const std::vector<Id> index = list("]");
    if (static_cast<int>(index.size()) != aux->rank) {
      fail(token, "aux tensor " + quoted(token) + " takes " +
                      (aux->rank == 1 ? "1 index" : std::to_string(aux->rank) + " indices") +
                      ", found " + std::to_string(index.size()));
    }
    for (size_t n = 0; n < index.size(); ++n) {
      if (builder_.type(index[n]) == Type::kFloat) {
        fail(columns_[n], "an index of aux tensor " + quoted(token) + " is a float; use int()");
      }
    }
    return load(*aux, index);
  }

  Id load(const AuxSignature& aux, std::span<const Id> index) {
    if (mentions_ != nullptr) mentions_->aux.push_back(aux.name);
    return builder_.load(aux, index);
  }

  Id name(const Token& token) {
    std::string known;
    for (int n = 0; n < kNumVariables; ++n) {
      const auto variable = static_cast<Variable>(n);
      if (variable_name(variable) == token.text) {
        if (variable == Variable::kScore && !is_score_) {
          fail(token, "a mask cannot read the score");
        }
        return builder_.variable(variable);
      }
      if (variable == Variable::kLeftpad || (variable == Variable::kScore && !is_score_)) continue;
      known.append(known.empty() ? "" : ", ").append(variable_name(variable));
    }
    if (token.text == "param") fail(token, "'param' is used as param.NAME");
    if (token.text == "aux") fail(token, "aux tensors are read by their names alone, as in t[0]");
    const auto aux = std::ranges::find(aux_, token.text, &AuxSignature::name);
    if (aux != aux_.end() && aux->rank == 0) return load(*aux, {});
    if (aux != aux_.end()) {
      fail(token, "aux tensor " + quoted(token) + " needs " +
                      (aux->rank == 1 ? "an index" : std::to_string(aux->rank) + " indices") +
                      " in brackets");
    }
    if (std::ranges::find(kFunctions, token.text, &Function::name) != kFunctions.end()) {
      fail(token, "function " + quoted(token) + " needs its arguments in parentheses");
    }
    for (const AuxSignature& each : aux_) {
      known.append(", ").append(each.name).append(each.rank == 0 ? "" : "[]");
    }
    fail(token, "unknown name " + quoted(token) + "; known: " + known);
  }

  std::string_view what_;
  std::span<const AuxSignature> aux_;
  bool is_score_;
  Mentions* mentions_;
  std::vector<Token> tokens_;
  std::vector<Token> columns_;  // where the items of the last list begin
  size_t at_ = 0;
  int depth_ = 0;
  ExprBuilder builder_;
};

}  // namespace

Expr parse_score(std::string_view text, std::span<const AuxSignature> aux, Mentions* mentions) {
  return Parser(text, aux, /*is_score=*/true, mentions).run();
}

Expr parse_mask(std::string_view text, std::span<const AuxSignature> aux, Mentions* mentions) {
  return Parser(text, aux, /*is_score=*/false, mentions).run();
}

}  // namespace flashtile::variant
