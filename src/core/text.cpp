// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>
#include <vector>

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

/// Letters to insert, leave out or exchange.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t exchanged = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({exchanged, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
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

std::string_view nearest_name(std::string_view misspelt, std::span<const std::string_view> names) {
  std::string_view nearest;
  size_t limit = misspelt.size() / 3 + 1;
  for (const std::string_view name : names) {
    const size_t found = distance(misspelt, name);
    if (found >= limit) continue;
    limit = found;
    nearest = name;
  }
  return nearest;
}

std::string float_text(double value) {
  std::array<char, 32> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return error == std::errc{} ? std::string(buffer.data(), end) : std::string("?");
}

}  // namespace flashtile
