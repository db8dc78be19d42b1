// SPDX-License-Identifier: Apache-2.0
//
// Numbers and names as text, independent of the locale.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flashtile {

/// Letters, digits and _, not beginning with a digit.
bool is_identifier(std::string_view text);

/// The whole text as a number; nothing when it is none or does not fit.
std::optional<int64_t> parse_int(std::string_view text);
std::optional<uint64_t> parse_uint(std::string_view text);
std::optional<double> parse_float(std::string_view text);

/// The shortest text that reads back as the same number.
std::string float_text(double value);

}  // namespace flashtile
