// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/lexer.hpp"

#include <array>
#include <charconv>
#include <system_error>

#include "flashtile/error.hpp"

namespace flashtile::variant {
namespace {

// A bound on the size, and so on the depth, of every expression: what walks one may recurse.
constexpr size_t kMaxTokens = 4096;

constexpr std::array<std::string_view, 8> kPairs = {"&&", "||", "==", "!=", "<=", ">=", "<<", ">>"};
constexpr std::string_view kSingles = "+-*/%<>!?:()[],&|^.";

// Not <cctype>, which depends on the locale.
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

class Lexer {
 public:
  Lexer(std::string_view text, std::string_view what) : text_(text), what_(what) {}

  std::vector<Token> run() {
    std::vector<Token> tokens;
    for (;;) {
      while (at_ < text_.size() && is_space(text_[at_])) ++at_;
      if (tokens.size() == kMaxTokens && at_ < text_.size()) {
        fail_at(what_, column(at_),
                "the expression is longer than " + std::to_string(kMaxTokens) + " tokens");
      }
      tokens.push_back(next());
      if (tokens.back().kind == TokenKind::kEnd) return tokens;
    }
  }

 private:
  static int column(size_t at) { return static_cast<int>(at) + 1; }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  Token next() {
    Token token;
    token.column = column(at_);
    if (at_ == text_.size()) return token;
    const size_t begin = at_;
    if (is_digit(peek()) || (peek() == '.' && is_digit(peek(1)))) {
      number(token);
    } else if (is_letter(peek())) {
      while (is_letter(peek()) || is_digit(peek())) ++at_;
      token.kind = TokenKind::kName;
    } else {
      symbol();
      token.kind = TokenKind::kSymbol;
    }
    token.text = text_.substr(begin, at_ - begin);
    return token;
  }

  void symbol() {
    for (const std::string_view pair : kPairs) {
      if (text_.substr(at_).starts_with(pair)) {
        at_ += 2;
        return;
      }
    }
    if (kSingles.find(peek()) == std::string_view::npos || peek() == '\0') {
      const bool printable = peek() > ' ' && peek() < '\x7f';
      fail_at(what_, column(at_),
              printable ? std::string("unexpected character '") + peek() + "'"
                        : "unexpected character of code " +
                              std::to_string(static_cast<unsigned char>(peek())));
    }
    ++at_;
  }

  void number(Token& token) {
    const size_t begin = at_;
    bool is_float = false;
    while (is_digit(peek())) ++at_;
    if (peek() == '.') {
      is_float = true;
      ++at_;
      while (is_digit(peek())) ++at_;
    }
    const bool is_signed = peek(1) == '+' || peek(1) == '-';
    if ((peek() == 'e' || peek() == 'E') && is_digit(peek(is_signed ? 2 : 1))) {
      is_float = true;
      at_ += is_signed ? 2 : 1;
      while (is_digit(peek())) ++at_;
    }
    if (is_letter(peek())) {
      fail_at(what_, column(at_), std::string("unexpected '") + peek() + "' after a number");
    }
    const char* first = text_.data() + begin;
    const char* last = text_.data() + at_;
    const std::errc error = is_float ? std::from_chars(first, last, token.float_value).ec
                                     : std::from_chars(first, last, token.int_value).ec;
    if (error != std::errc()) {
      fail_at(what_, column(begin),
              is_float ? "the number is outside the range of a double"
                       : "the integer does not fit 64 bits; write it as a float");
    }
    token.kind = is_float ? TokenKind::kFloat : TokenKind::kInt;
  }

  std::string_view text_;
  std::string_view what_;
  size_t at_ = 0;
};

}  // namespace

void fail_at(std::string_view what, int column, const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument,
              std::string(what) + ", column " + std::to_string(column) + ": " + message);
}

std::vector<Token> tokenize(std::string_view text, std::string_view what) {
  return Lexer(text, what).run();
}

}  // namespace flashtile::variant
