// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flashtile::variant {

enum class TokenKind : uint8_t { kInt, kFloat, kName, kSymbol, kEnd };

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string_view text;  ///< into the text that was given
  int column = 1;         ///< of its first character, from 1
  int64_t int_value = 0;
  double float_value = 0;
};

/// Throws Error(kInvalidArgument): "score expression, column 9: message".
[[noreturn]] void fail_at(std::string_view what, int column, const std::string& message);

/// Cuts a text into tokens; the last is kEnd. `what` names the text in errors.
std::vector<Token> tokenize(std::string_view text, std::string_view what);

}  // namespace flashtile::variant
