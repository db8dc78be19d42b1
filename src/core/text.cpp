// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"

#include <array>
#include <charconv>
#include <system_error>

namespace flashtile {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

}  // namespace

bool is_identifier(std::string_view text) {
  if (text.empty() || !is_letter(text[0])) return false;
  for (char c : text) {
    if (!is_letter(c) && !is_digit(c)) return false;
  }
  return true;
}

std::optional<int64_t> parse_int(std::string_view text) { return parse_number<int64_t>(text); }
std::optional<uint64_t> parse_uint(std::string_view text) { return parse_number<uint64_t>(text); }
std::optional<double> parse_float(std::string_view text) { return parse_number<double>(text); }

std::string float_text(double value) {
  std::array<char, 32> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return error == std::errc{} ? std::string(buffer.data(), end) : std::string("?");
}

}  // namespace flashtile
