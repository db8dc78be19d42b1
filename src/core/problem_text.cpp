// SPDX-License-Identifier: Apache-2.0
//
// Problem texts: reading and writing. problem_call.cpp turns them into calls and back.
#include "core/problem_text.hpp"

#include <set>

#include "core/text.hpp"
#include "flashtile/error.hpp"

namespace flashtile {
namespace {

bool is_word_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.';
}

// The row of a tensor that has this very name; families match names that are identifiers.
const TensorSpec* tensor_row(const OpSpec& spec, std::string_view name) {
  const TensorSpec* row = spec.find_tensor(name);
  if (row == nullptr || !row->is_family()) return row;
  return is_identifier(family_suffix(row->name, name)) ? row : nullptr;
}

const OptionSpec* option_row(const OpSpec& spec, std::string_view name) {
  const OptionSpec* row = spec.find_option(name);
  if (row == nullptr || !row->is_family()) return row;
  return is_identifier(family_suffix(row->name, name)) ? row : nullptr;
}

const DimSpec* dim_with_code(const OpSpec& spec, std::string_view code) {
  for (const DimSpec& dim : spec.dims) {
    if (!dim.code.empty() && dim.code == code) return &dim;
  }
  return nullptr;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  ProblemText parse() {
    const std::string_view op = word();
    problem_.spec = find_op(op);
    if (problem_.spec == nullptr) fail_unknown_op(op);
    while (accept(':')) parse_item();
    if (accept('@')) parse_implementation();
    if (pos_ != text_.size()) fail(pos_, "'" + std::string(1, text_[pos_]) + "' is not expected");
    return std::move(problem_);
  }

 private:
  [[noreturn]] static void fail(size_t pos, const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument,
                "problem text, column " + std::to_string(pos + 1) + ": " + what);
  }

  /// `known`: what to say where no name is near.
  [[noreturn]] static void fail_unknown(size_t pos, const char* what, std::string_view name,
                                        std::span<const std::string_view> names,
                                        const std::string& known) {
    const std::string_view nearest = nearest_name(name, names);
    fail(pos, std::string("unknown ") + what + " '" + std::string(name) + "'; " +
                  (nearest.empty() ? known : "did you mean '" + std::string(nearest) + "'?"));
  }

  /// Ops of one stem stand together: "gla_fwd, _bwd, _step".
  [[noreturn]] static void fail_unknown_op(std::string_view op) {
    std::string known = "known:";
    std::vector<std::string_view> names;
    std::string_view stem;
    for (const OpSpec* spec : all_ops()) {
      const size_t end = std::min(spec->name.rfind('_'), spec->name.size());
      const bool is_same = spec->name.substr(0, end) == stem;
      stem = spec->name.substr(0, end);
      known += names.empty() ? " " : ", ";
      known += is_same ? spec->name.substr(end) : spec->name;
      names.push_back(spec->name);
    }
    fail_unknown(0, "op", op, names, known);
  }

  bool at(char c) const { return pos_ < text_.size() && text_[pos_] == c; }
  bool accept(char c) {
    if (!at(c)) return false;
    ++pos_;
    return true;
  }
  void expect(char c, const char* what) {
    if (!accept(c)) fail(pos_, std::string("expected '") + c + "' " + what);
  }
  std::string_view word() {
    const size_t begin = pos_;
    while (pos_ < text_.size() && is_word_char(text_[pos_])) ++pos_;
    return text_.substr(begin, pos_ - begin);
  }

  void parse_item() {
    const size_t begin = pos_;
    const std::string_view name = word();
    if (name.empty()) fail(begin, "expected an item");
    if (parse_tensor(begin, name)) return;
    if (parse_option_item(begin, name)) return;
    if (parse_size(begin, name)) return;
    if (const DType dtype = dtype_from_name(name); dtype != DType::kNone) {
      note(begin, "dtype");
      problem_.dtype = dtype;
      return;
    }
    fail_unknown_item(begin, name);
  }

  [[noreturn]] void fail_unknown_item(size_t pos, std::string_view name) const {
    std::vector<std::string_view> names;
    for (const DimSpec& dim : problem_.spec->dims) names.push_back(dim.name);
    for (const TensorSpec& row : problem_.spec->tensors) names.push_back(row.name);
    for (const OptionSpec& row : problem_.spec->options) names.push_back(row.name);
    for (const std::string_view dtype : {"f32", "f16", "bf16", "f64"}) names.push_back(dtype);
    fail_unknown(pos, "item", name, names, known_items());
  }

  std::string known_items() const {
    const OpSpec& spec = *problem_.spec;
    std::string text = std::string(spec.name) + " has sizes";
    for (const DimSpec& dim : spec.dims)
      text += " " + std::string(dim.code.empty() ? dim.name : dim.code);
    text += ", tensors";
    for (const TensorSpec& row : spec.tensors) text += " " + std::string(row.name);
    text += ", options";
    for (const OptionSpec& row : spec.options) text += " " + std::string(row.name);
    return text;
  }

  // Each thing may be said once.
  void note(size_t begin, std::string_view name) {
    if (!seen_.emplace(name).second) fail(begin, std::string(name) + " is given twice");
  }

  bool parse_tensor(size_t begin, std::string_view name) {
    TensorItem item;
    if (tensor_row(*problem_.spec, name) == nullptr) {
      const size_t dot = name.rfind('.');
      if (dot == std::string_view::npos) return false;
      item.dtype = dtype_from_name(name.substr(dot + 1));
      name = name.substr(0, dot);
      if (item.dtype == DType::kNone || tensor_row(*problem_.spec, name) == nullptr) return false;
    }
    note(begin, name);
    item.name = name;
    if (accept('[')) parse_dims(item);
    if (accept('=')) {
      if (!item.has_dims && item.dtype == DType::kNone && text_.substr(pos_).starts_with("none")) {
        pos_ += 4;
        item.is_left_out = true;
      } else if (at('{')) {
        parse_values(item);
      } else {
        parse_whole(item);
      }
    }
    problem_.tensors.push_back(std::move(item));
    return true;
  }

  void parse_dims(TensorItem& item) {
    item.has_dims = true;
    if (accept(']')) return;
    do {
      const size_t begin = pos_;
      std::string entry(word());
      if (!parse_int(entry) && dim_with_code(*problem_.spec, entry) == nullptr &&
          problem_.spec->find_dim(entry) == nullptr) {
        fail(begin, "expected a number or a size, found '" + entry + "'");
      }
      if (accept('+')) {
        expect('1', "behind +");
        entry += "+1";
      }
      item.dims.push_back(std::move(entry));
      if (item.dims.size() > static_cast<size_t>(TensorView::kMaxDims)) {
        fail(begin, "more than " + std::to_string(TensorView::kMaxDims) + " dimensions");
      }
    } while (accept(','));
    expect(']', "behind the shape of " + item.name);
  }

  void expect(char c, const std::string& what) { expect(c, what.c_str()); }

  void parse_whole(TensorItem& item) {
    const size_t begin = pos_;
    item.whole = word();
    if (problem_.spec->find_tensor(item.whole) == nullptr || item.whole == item.name) {
      fail(begin, "expected '{' and values for the tensor " + item.name +
                      ", or the input whose first columns it is");
    }
  }

  void parse_values(TensorItem& item) {
    expect('{', "and values for the tensor " + item.name);
    item.has_values = true;
    if (accept('}')) return;
    do {
      const size_t begin = pos_;
      while (pos_ < text_.size() && (at('-') || is_word_char(text_[pos_]))) ++pos_;
      const std::string_view number = text_.substr(begin, pos_ - begin);
      const auto value = parse_int(number);
      if (!value) fail(begin, "expected an integer, found '" + std::string(number) + "'");
      item.values.push_back(*value);
    } while (accept(','));
    expect('}', "behind the values of " + item.name);
  }

  bool parse_option_item(size_t begin, std::string_view name) {
    const OptionSpec* row = option_row(*problem_.spec, name);
    if (row == nullptr) return false;
    note(begin, name);
    std::string text = "true";
    size_t value_begin = begin;
    if (accept('=')) {
      value_begin = pos_;
      text = parse_value();
    } else if (row->type != OptionType::kBool) {
      fail(pos_, "expected = and a value for the option " + std::string(name));
    }
    try {
      OptionValue value = parse_option(*problem_.spec, *row, name, text);
      check_option(*problem_.spec, *row, name, value);
      problem_.options.emplace_back(std::string(name), std::move(value));
    } catch (const Error& error) {
      fail(value_begin, error.what());
    }
    return true;
  }

  std::string parse_value() {
    const size_t begin = pos_;
    if (!accept('\'')) {
      while (pos_ < text_.size() && !at(':') && !at('@') && !at('\'')) ++pos_;
      return std::string(text_.substr(begin, pos_ - begin));
    }
    std::string value;
    while (pos_ < text_.size()) {
      if (!accept('\'')) {
        value += text_[pos_++];
      } else if (accept('\'')) {
        value += '\'';
      } else {
        return value;
      }
    }
    fail(begin, "the quote is not closed");
  }

  bool parse_size(size_t begin, std::string_view name) {
    const DimSpec* dim = problem_.spec->find_dim(name);
    std::string_view digits;
    size_t digits_begin = pos_;
    if (dim != nullptr) {
      if (!accept('=')) fail(pos_, "expected = and a number for the size " + std::string(name));
      digits_begin = pos_;
      digits = word();
    } else {
      const size_t end = name.find_first_of("0123456789");
      if (end == std::string_view::npos) return false;
      dim = dim_with_code(*problem_.spec, name.substr(0, end));
      if (dim == nullptr) return false;
      digits = name.substr(end);
      digits_begin = begin + end;
    }
    const auto size = parse_int(digits);
    if (!size || *size < 0) {
      fail(digits_begin,
           "expected the size " + std::string(dim->name) + ", found '" + std::string(digits) + "'");
    }
    note(begin, dim->name);
    problem_.sizes.emplace(std::string(dim->name), *size);
    return true;
  }

  void parse_implementation() {
    const size_t begin = pos_;
    const std::string_view name = word();
    if (!is_identifier(name)) fail(begin, "expected the name of an implementation");
    const std::string prefix = std::string(problem_.spec->name) + "_";
    problem_.implementation = (name.starts_with(prefix) ? "" : prefix) + std::string(name);
  }

  std::string_view text_;
  size_t pos_ = 0;
  ProblemText problem_;
  std::set<std::string, std::less<>> seen_;
};

std::string quoted_value(const std::string& text) {
  if (!text.empty() && text.find_first_of(":@'") == std::string::npos) return text;
  std::string result = "'";
  for (char c : text) result += c == '\'' ? std::string("''") : std::string(1, c);
  return result + "'";
}

template <class Range, class ToText>
std::string joined(const Range& range, ToText to_text) {
  std::string text;
  for (const auto& entry : range) text += (text.empty() ? "" : ",") + to_text(entry);
  return text;
}

std::string tensor_text(const TensorItem& item) {
  std::string text = item.name;
  if (item.is_left_out) return text + "=none";
  if (item.dtype != DType::kNone) text += "." + std::string(dtype_name(item.dtype));
  if (!item.whole.empty()) return text + "=" + item.whole;
  if (item.has_dims) text += "[" + joined(item.dims, [](const std::string& d) { return d; }) + "]";
  if (item.has_values) {
    text += "={" + joined(item.values, [](int64_t value) { return std::to_string(value); }) + "}";
  }
  return text;
}

}  // namespace

const TensorItem* ProblemText::find_tensor(std::string_view name) const {
  for (const TensorItem& item : tensors) {
    if (item.name == name) return &item;
  }
  return nullptr;
}

ProblemText parse_problem(std::string_view text) { return Parser(text).parse(); }

std::string format_problem(const ProblemText& problem) {
  const OpSpec& spec = *problem.spec;
  std::string text(spec.name);
  for (const DimSpec& dim : spec.dims) {
    const auto size = problem.sizes.find(dim.name);
    if (size == problem.sizes.end()) continue;
    text += ":" + (dim.code.empty() ? std::string(dim.name) + "=" : std::string(dim.code)) +
            std::to_string(size->second);
  }
  for (const auto& [name, value] : problem.options) {
    const bool* flag = std::get_if<bool>(&value);
    text += ":" + name;
    if (flag == nullptr || !*flag) text += "=" + quoted_value(option_text(value));
  }
  for (const TensorItem& item : problem.tensors) text += ":" + tensor_text(item);
  text += ":" + std::string(dtype_name(problem.dtype));
  if (problem.implementation.empty()) return text;
  const std::string prefix = std::string(spec.name) + "_";
  const bool is_short = problem.implementation.starts_with(prefix);
  return text + "@" + problem.implementation.substr(is_short ? prefix.size() : 0);
}

}  // namespace flashtile
