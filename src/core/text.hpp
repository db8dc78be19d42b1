// SPDX-License-Identifier: Apache-2.0
//
// Numbers and names as text, independent of the locale.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace flashtile {

/// Letters, digits and _, not beginning with a digit.
bool is_identifier(std::string_view text);

/// The whole text as a number; nothing when it is none or does not fit.
std::optional<int64_t> parse_int(std::string_view text);
std::optional<uint64_t> parse_uint(std::string_view text);
std::optional<double> parse_float(std::string_view text);

/// The name that a misspelt one may stand for: the one that the fewest letters away, at most a
/// third of them, make of it. Empty: none.
std::string_view nearest_name(std::string_view misspelt, std::span<const std::string_view> names);

/// The shortest text that reads back as the same number.
std::string float_text(double value);

}  // namespace flashtile
