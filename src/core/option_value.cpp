// SPDX-License-Identifier: Apache-2.0
//
// Option values: lossless conversion, limits, text.
#include <cmath>
#include <limits>

#include "core/op_spec.hpp"
#include "core/text.hpp"
#include "flashtile/error.hpp"

namespace flashtile {
namespace {

std::string_view type_name(OptionType type) {
  switch (type) {
    case OptionType::kBool:
      return "true or false";
    case OptionType::kInt:
      return "a 64-bit integer";
    case OptionType::kUint:
      return "an unsigned 64-bit integer";
    case OptionType::kFloat:
      return "a number";
    case OptionType::kText:
      return "a text";
  }
  return "a value";
}

[[noreturn]] void fail(const OpSpec& spec, std::string_view name, const std::string& found,
                       const std::string& expected) {
  throw Error(ErrorCode::kInvalidArgument, std::string(spec.name) + ": " + std::string(name) +
                                               " is " + found + ", expected " + expected);
}

// 2^63 and 2^64: the first doubles that do not fit.
constexpr double kIntEnd = 9223372036854775808.0;
constexpr double kUintEnd = 18446744073709551616.0;

std::optional<int64_t> to_int(const OptionValue& value) {
  if (const bool* x = std::get_if<bool>(&value)) return *x ? 1 : 0;
  if (const int64_t* x = std::get_if<int64_t>(&value)) return *x;
  if (const uint64_t* x = std::get_if<uint64_t>(&value)) {
    if (*x > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(*x);
  }
  if (const double* x = std::get_if<double>(&value)) {
    if (!(*x >= -kIntEnd && *x < kIntEnd) || std::trunc(*x) != *x) return std::nullopt;
    return static_cast<int64_t>(*x);
  }
  return std::nullopt;
}

std::optional<uint64_t> to_uint(const OptionValue& value) {
  if (const uint64_t* x = std::get_if<uint64_t>(&value)) return *x;
  if (const double* x = std::get_if<double>(&value)) {
    if (!(*x >= 0 && *x < kUintEnd) || std::trunc(*x) != *x) return std::nullopt;
    return static_cast<uint64_t>(*x);
  }
  const std::optional<int64_t> x = to_int(value);
  if (!x || *x < 0) return std::nullopt;
  return static_cast<uint64_t>(*x);
}

std::optional<double> to_float(const OptionValue& value) {
  if (const double* x = std::get_if<double>(&value)) return *x;
  if (const uint64_t* x = std::get_if<uint64_t>(&value)) {
    const auto y = static_cast<double>(*x);
    if (y >= kUintEnd || static_cast<uint64_t>(y) != *x) return std::nullopt;
    return y;
  }
  const std::optional<int64_t> x = to_int(value);
  if (!x) return std::nullopt;
  const auto y = static_cast<double>(*x);
  if (y >= kIntEnd || static_cast<int64_t>(y) != *x) return std::nullopt;
  return y;
}

// The nearest double of a number, to hold against limits.
double rounded_number(const OptionValue& value) {
  if (const int64_t* x = std::get_if<int64_t>(&value)) return static_cast<double>(*x);
  if (const uint64_t* x = std::get_if<uint64_t>(&value)) return static_cast<double>(*x);
  const double* x = std::get_if<double>(&value);
  return x != nullptr ? *x : 0.0;
}

std::optional<bool> to_bool(const OptionValue& value) {
  const std::optional<int64_t> x = to_int(value);
  if (!x || (*x != 0 && *x != 1)) return std::nullopt;
  return *x == 1;
}

template <class T>
OptionValue or_nothing(const std::optional<T>& value) {
  return value ? OptionValue(std::in_place_type<T>, *value) : OptionValue();
}

// A limit as text; integers without ".0" or exponent.
std::string limit_text(double limit) {
  if (std::trunc(limit) == limit && std::abs(limit) < 1e15) {
    return std::to_string(static_cast<int64_t>(limit));
  }
  return float_text(limit);
}

std::string low_text(const OptionSpec& row) {
  return (row.min_is_open ? "more than " : "at least ") + limit_text(row.min_value);
}

std::string limits_text(const OptionSpec& row) {
  // Limits at the ends of the type say nothing that its name does not say, but that a float is not
  // infinite.
  const bool is_float = row.type == OptionType::kFloat;
  constexpr double kLargest = std::numeric_limits<double>::max();
  const bool has_min = row.min_value > (is_float ? -kLargest : -kIntEnd);
  const bool has_max = row.max_value < (is_float                        ? kLargest
                                        : row.type == OptionType::kUint ? kUintEnd
                                                                        : kIntEnd);
  if (is_float && !has_max && row.max_value == kLargest) {
    return has_min ? "a finite number, " + low_text(row) : "a finite number";
  }
  const std::string low = low_text(row);
  const std::string high =
      (row.max_is_open ? "less than " : "at most ") + limit_text(row.max_value);
  if (has_min && has_max) return low + " and " + high;
  if (has_min) return low;
  return has_max ? high : std::string(type_name(row.type));
}

}  // namespace

std::string option_text(const OptionValue& value) {
  if (const bool* x = std::get_if<bool>(&value)) return *x ? "true" : "false";
  if (const int64_t* x = std::get_if<int64_t>(&value)) return std::to_string(*x);
  if (const uint64_t* x = std::get_if<uint64_t>(&value)) return std::to_string(*x);
  if (const double* x = std::get_if<double>(&value)) return float_text(*x);
  if (const std::string* x = std::get_if<std::string>(&value)) return *x;
  return {};
}

OptionValue convert_option(const OpSpec& spec, const OptionSpec& row, std::string_view full_name,
                           const OptionValue& value) {
  if (std::holds_alternative<std::monostate>(value)) return value;
  OptionValue result;
  switch (row.type) {
    case OptionType::kBool:
      result = or_nothing(to_bool(value));
      break;
    case OptionType::kInt:
      result = or_nothing(to_int(value));
      break;
    case OptionType::kUint:
      result = or_nothing(to_uint(value));
      break;
    case OptionType::kFloat:
      result = or_nothing(to_float(value));
      break;
    case OptionType::kText:
      if (std::holds_alternative<std::string>(value)) result = value;
      break;
  }
  if (std::holds_alternative<std::monostate>(result)) {
    const bool is_text = std::holds_alternative<std::string>(value);
    fail(spec, full_name, is_text ? "the text '" + option_text(value) + "'" : option_text(value),
         std::string(type_name(row.type)));
  }
  return result;
}

OptionValue parse_option(const OpSpec& spec, const OptionSpec& row, std::string_view full_name,
                         std::string_view text) {
  OptionValue result;
  switch (row.type) {
    case OptionType::kBool:
      if (text == "true" || text == "1") result = true;
      if (text == "false" || text == "0") result = false;
      break;
    case OptionType::kInt:
      result = or_nothing(parse_int(text));
      break;
    case OptionType::kUint:
      result = or_nothing(parse_uint(text));
      break;
    case OptionType::kFloat:
      result = or_nothing(parse_float(text));
      break;
    case OptionType::kText:
      result = std::string(text);
      break;
  }
  if (std::holds_alternative<std::monostate>(result)) {
    fail(spec, full_name, "'" + std::string(text) + "'", std::string(type_name(row.type)));
  }
  return result;
}

void check_option(const OpSpec& spec, const OptionSpec& row, std::string_view full_name,
                  const OptionValue& value) {
  if (std::holds_alternative<std::monostate>(value)) return;
  if (convert_option(spec, row, full_name, value).index() != value.index()) {
    fail(spec, full_name, option_text(value), std::string(type_name(row.type)));
  }
  if (row.type == OptionType::kText || row.type == OptionType::kBool) return;
  const double number = rounded_number(value);
  const bool has_limits = row.min_value < row.max_value;
  if (std::isnan(number) || (!has_limits && std::isinf(number))) {
    fail(spec, full_name, option_text(value), "a finite number");
  }
  if (!has_limits) return;
  const bool is_low = row.min_is_open ? number <= row.min_value : number < row.min_value;
  const bool is_high = row.max_is_open ? number >= row.max_value : number > row.max_value;
  if (is_low || is_high) fail(spec, full_name, option_text(value), limits_text(row));
}

}  // namespace flashtile
