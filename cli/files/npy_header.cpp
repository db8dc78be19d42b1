// SPDX-License-Identifier: Apache-2.0
#include "files/npy_header.hpp"

#include <array>
#include <charconv>
#include <set>
#include <utility>

#include "files/storage.hpp"

namespace flashtile::cli {
namespace {

constexpr std::array<std::pair<std::string_view, DType>, 8> kDescrs{{
    {"<f8", DType::kF64},
    {"<f4", DType::kF32},
    {"<f2", DType::kF16},
    {"<i8", DType::kI64},
    {"<i4", DType::kI32},
    {"|u1", DType::kU8},
    {"|i1", DType::kI8},
    {"|b1", DType::kBool},
}};

/// Just enough of Python's literals for the three entries of a header.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& file_name)
      : text_(text), file_name_(file_name) {}

  NpyHeader parse() {
    expect('{');
    std::set<std::string> seen;
    while (!accept('}')) {
      const std::string key = parse_string();
      if (!seen.insert(key).second) fail("entry " + in_quotes(key) + " appears twice");
      expect(':');
      parse_entry(key);
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) fail("text follows the dictionary");
    for (const char* needed : {"descr", "fortran_order", "shape"}) {
      if (!seen.contains(needed)) fail("there is no entry '" + std::string(needed) + "'");
    }
    return header_;
  }

 private:
  [[noreturn]] void fail(const std::string& text) const {
    throw file_error(file_name_, "the header is damaged: " + text);
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }

  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool accept(char c) {
    if (peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!accept(c)) {
      fail("'" + std::string(1, c) + "' is expected at byte " + std::to_string(at_));
    }
  }

  std::string parse_string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') {
      fail("a string is expected at byte " + std::to_string(at_));
    }
    const size_t begin = ++at_;
    const size_t end = text_.find(quote, begin);
    if (end == std::string_view::npos) fail("a string does not end");
    at_ = end + 1;
    return std::string(text_.substr(begin, end - begin));
  }

  void parse_entry(const std::string& key) {
    if (key == "descr") {
      parse_descr();
    } else if (key == "fortran_order") {
      parse_order();
    } else if (key == "shape") {
      parse_shape();
    } else {
      fail("unknown entry " + in_quotes(key));
    }
  }

  void parse_descr() {
    if (peek() == '[') throw file_error(file_name_, "has a structured dtype, which is not read");
    std::string descr = parse_string();
    if (!descr.empty() && descr[0] == '=') descr[0] = '<';
    if (descr == "<u1" || descr == "<b1") descr[0] = '|';
    for (const auto& [text, dtype] : kDescrs) {
      if (text == descr) header_.dtype = dtype;
    }
    if (header_.dtype == DType::kNone) {
      throw file_error(file_name_, "has dtype " + in_quotes(descr) +
                                       "; known: <f8 <f4 <f2 <i8 <i4 |u1 |b1 (bf16: .safetensors)");
    }
  }

  void parse_order() {
    skip_space();
    for (const auto& [word, value] : {std::pair("True", true), std::pair("False", false)}) {
      if (text_.substr(at_).starts_with(word)) {
        at_ += std::string_view(word).size();
        header_.fortran_order = value;
        return;
      }
    }
    fail("fortran_order is neither True nor False");
  }

  void parse_shape() {
    expect('(');
    while (!accept(')')) {
      if (header_.shape.size() == TensorView::kMaxDims) {
        throw file_error(file_name_,
                         "has more than " + std::to_string(TensorView::kMaxDims) + " dimensions");
      }
      header_.shape.push_back(parse_size());
      if (!accept(',')) {
        // Python reads (3) as a number, so one dimension needs its comma.
        if (header_.shape.size() == 1 && peek() == ')') fail("shape is not a tuple");
        expect(')');
        break;
      }
    }
  }

  int64_t parse_size() {
    skip_space();
    int64_t value = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error == std::errc::result_out_of_range) fail("a dimension is too large");
    if (error != std::errc()) fail("a dimension is expected at byte " + std::to_string(at_));
    if (value < 0) fail("dimension " + std::to_string(value) + " is negative");
    at_ += static_cast<size_t>(end - begin);
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2 wrote long integers so
    return value;
  }

  std::string_view text_;
  const std::string& file_name_;
  size_t at_ = 0;
  NpyHeader header_;
};

}  // namespace

NpyHeader parse_npy_header(std::string_view text, const std::string& file_name) {
  return HeaderParser(text, file_name).parse();
}

std::string_view npy_descr(DType dtype) {
  for (const auto& [text, known] : kDescrs) {
    if (known == dtype) return text;
  }
  return {};
}

}  // namespace flashtile::cli
