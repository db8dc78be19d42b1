// SPDX-License-Identifier: Apache-2.0
#include "files/safetensors_header.hpp"

#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "files/storage.hpp"

namespace flashtile::cli {
namespace {

constexpr std::array<std::pair<std::string_view, DType>, 10> kDtypeNames{{
    {"F64", DType::kF64},
    {"F32", DType::kF32},
    {"F16", DType::kF16},
    {"BF16", DType::kBF16},
    {"I64", DType::kI64},
    {"I32", DType::kI32},
    {"U8", DType::kU8},
    {"I8", DType::kI8},
    {"F8_E4M3", DType::kE4M3},
    {"BOOL", DType::kBool},
}};

/// Follows the parser's events through the one structure that a header may have. No tree is built,
/// so neither depth nor duplicates can hide anything.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(const std::string& file_name, SafetensorsHeader* header)
      : file_name_(file_name), header_(header) {}

  bool null() override { unexpected("null"); }
  bool boolean(bool /*value*/) override { unexpected("a boolean"); }
  bool binary(binary_t& /*value*/) override { unexpected("binary data"); }
  bool number_integer(number_integer_t /*value*/) override { unexpected("a negative number"); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    unexpected("a number that is not an integer or too large");
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (value > INT64_MAX) unexpected("a dimension that is too large");
      if (entry_.shape.size() == TensorView::kMaxDims) {
        fail("tensor " + in_quotes(name_) + " has more than " +
             std::to_string(TensorView::kMaxDims) + " dimensions");
      }
      entry_.shape.push_back(static_cast<int64_t>(value));
    } else if (place_ == Place::kOffsets) {
      if (num_offsets_ >= 2) fail("data_offsets of tensor " + in_quotes(name_) + " are not two");
      (num_offsets_ == 0 ? entry_.begin : entry_.end) = value;
      ++num_offsets_;
    } else {
      unexpected("a number");
    }
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header_->metadata[key_] = value;
    } else if (place_ == Place::kTensor && key_ == "dtype") {
      set_dtype(value);
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool start_object(std::size_t /*num_elements*/) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop) {
      place_ = name_ == "__metadata__" ? Place::kMetadata : Place::kTensor;
      inner_keys_.clear();
      entry_ = {};
      entry_.name = name_;
      num_offsets_ = 0;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    std::set<std::string>& seen = place_ == Place::kTop ? names_ : inner_keys_;
    if (!seen.insert(value).second) {
      fail("name " + in_quotes(value) + " appears twice in " +
           (place_ == Place::kTop ? "the header" : in_quotes(name_)));
    }
    if (place_ == Place::kTop) {
      name_ = value;
    } else if (place_ == Place::kTensor && value != "dtype" && value != "shape" &&
               value != "data_offsets") {
      fail("tensor " + in_quotes(name_) + " has an unknown entry " + in_quotes(value));
    }
    key_ = value;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) finish_tensor();
    place_ = place_ == Place::kTop ? Place::kOutside : Place::kTop;
    return true;
  }

  bool start_array(std::size_t /*num_elements*/) override {
    if (place_ == Place::kTensor && key_ == "shape") {
      place_ = Place::kShape;
    } else if (place_ == Place::kTensor && key_ == "data_offsets") {
      place_ = Place::kOffsets;
    } else {
      unexpected("a list");
    }
    return true;
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*last_token*/,
                   const nlohmann::json::exception& /*error*/) override {
    fail("is not valid JSON at byte " + std::to_string(position));
  }

 private:
  enum class Place { kOutside, kTop, kMetadata, kTensor, kShape, kOffsets };

  [[noreturn]] void fail(const std::string& text) const {
    throw file_error(file_name_, "the header is damaged: " + text);
  }

  [[noreturn]] void unexpected(const std::string& what) const {
    switch (place_) {
      case Place::kOutside:
        fail("an object is expected, not " + what);
      case Place::kTop:
        fail("entry " + in_quotes(name_) + " is " + what + ", not an object");
      case Place::kMetadata:
        fail("metadata " + in_quotes(key_) + " is " + what + ", not a string");
      default:
        fail("entry " + in_quotes(key_) + " of tensor " + in_quotes(name_) + " is or holds " +
             what);
    }
  }

  void set_dtype(const std::string& text) {
    for (const auto& [dtype_text, dtype] : kDtypeNames) {
      if (dtype_text == text) entry_.dtype = dtype;
    }
    if (entry_.dtype == DType::kNone) {
      throw file_error(file_name_, "tensor " + in_quotes(name_) + " has dtype " + in_quotes(text) +
                                       "; known: F64 F32 F16 BF16 I64 I32 U8 I8 F8_E4M3 BOOL");
    }
  }

  void finish_tensor() {
    const std::string tensor = "tensor " + in_quotes(name_);
    for (const char* needed : {"dtype", "shape", "data_offsets"}) {
      if (!inner_keys_.contains(needed)) fail(tensor + " has no " + needed);
    }
    if (num_offsets_ != 2) fail("data_offsets of " + tensor + " are not two");
    if (entry_.end < entry_.begin) fail(tensor + " ends before it begins");
    int64_t bytes = 0;
    if (!contiguous_bytes(entry_.dtype, entry_.shape, &bytes)) {
      fail("the size of " + tensor + " overflows");
    }
    const uint64_t held = entry_.end - entry_.begin;
    if (held != static_cast<uint64_t>(bytes)) {
      fail(tensor + " has " + std::to_string(held) + " bytes of data, its shape and dtype need " +
           std::to_string(bytes));
    }
    header_->entries.push_back(std::move(entry_));
  }

  const std::string& file_name_;
  SafetensorsHeader* header_;
  Place place_ = Place::kOutside;
  std::string name_;  ///< the last key of the outer object
  std::string key_;   ///< the last key of any object
  std::set<std::string> names_;
  std::set<std::string> inner_keys_;
  SafetensorsEntry entry_;
  int num_offsets_ = 0;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, const std::string& file_name) {
  SafetensorsHeader header;
  HeaderReader reader(file_name, &header);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  return header;
}

std::string_view safetensors_dtype_name(DType dtype) {
  for (const auto& [text, known] : kDtypeNames) {
    if (known == dtype) return text;
  }
  return {};
}

}  // namespace flashtile::cli
