// SPDX-License-Identifier: Apache-2.0
//
// Faults of an operator table, found when an op is registered and in a test of the built-in ones.
#include <algorithm>
#include <set>

#include "core/op_spec.hpp"
#include "core/shape_spec.hpp"
#include "core/text.hpp"
#include "flashtile/error.hpp"

namespace flashtile {
namespace {

std::string quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

std::string dim_fault(const OpSpec& spec, std::set<std::string_view>& names) {
  std::set<std::string_view> codes;
  for (const DimSpec& dim : spec.dims) {
    if (!is_identifier(dim.name)) return "size " + quoted(dim.name) + " has no proper name";
    if (!names.insert(dim.name).second) return quoted(dim.name) + " stands for two things";
    if (!dim.default_from.empty() && spec.find_dim(dim.default_from) == nullptr) {
      return "size " + quoted(dim.name) + " has its default from an unknown one";
    }
    if (dim.code.empty()) continue;
    // Followed by a number, a code must read as nothing else.
    if (!is_identifier(dim.code) || (dim.code.back() >= '0' && dim.code.back() <= '9')) {
      return "code of size " + quoted(dim.name) + " is not made of letters";
    }
    if (!codes.insert(dim.code).second) return "code " + quoted(dim.code) + " is used twice";
    for (const char* bits : {"8", "16", "32", "64"}) {
      if (dtype_from_name(std::string(dim.code) + bits) != DType::kNone) {
        return "code " + quoted(dim.code) + " with a number is a dtype";
      }
    }
  }
  return {};
}

// A row name: an identifier, or one followed by ".*".
bool is_row_name(std::string_view name) {
  if (name.ends_with(".*")) name.remove_suffix(2);
  return is_identifier(name) && dtype_from_name(name) == DType::kNone;
}

std::string dtypes_fault(const OpSpec& spec, const TensorSpec& row) {
  std::string_view rest = row.dtypes;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(' '), rest.size());
    const std::string_view word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (word.empty()) continue;
    if (word.starts_with('=')) {
      const TensorSpec* other = spec.find_tensor(word.substr(1));
      if (other == nullptr || other->name != word.substr(1)) {
        return "dtype " + quoted(word) + " names an unknown tensor";
      }
      if (other->dtypes.starts_with('=') && other->name == row.name) {
        return "dtype " + quoted(word) + " refers to itself";
      }
    } else if (dtype_from_name(word) == DType::kNone) {
      return "dtype " + quoted(word) + " is unknown";
    }
  }
  return {};
}

std::string shape_fault(const OpSpec& spec, const TensorSpec& row) {
  for (const ShapeForm& form : parse_shape(row.shape)) {
    if (!form.condition.empty() && spec.find_tensor(form.condition) == nullptr) {
      return "unknown tensor " + quoted(form.condition);
    }
    for (const ShapeEntry& entry : form.dims()) {
      if (!entry.name.empty() && spec.find_dim(entry.name) == nullptr) {
        return "unknown size " + quoted(entry.name);
      }
    }
  }
  return {};
}

std::string tensor_fault(const OpSpec& spec, const TensorSpec& row) {
  if (row.access == nullptr) return "has no accessor";
  if (row.is_family() && row.suffixes == nullptr) return "has no list of suffixes";
  if (row.is_family() && row.required) return "is a family and required";
  if (!row.gradient_of.empty()) {
    const TensorSpec* input = spec.find_tensor(row.gradient_of);
    if (input == nullptr || input->name != row.gradient_of || !input->is_input()) {
      return "is the gradient of an unknown input " + quoted(row.gradient_of);
    }
    if (row.direction != Direction::kOut) return "is a gradient and no output";
    if (row.is_family() != input->is_family()) return "is a gradient of another kind of row";
  }
  if (!row.written_with.empty()) {
    if (row.direction != Direction::kInOut) return "is written with a tensor and not in-out";
    if (spec.find_tensor(row.written_with) == nullptr) {
      return "is written with an unknown tensor " + quoted(row.written_with);
    }
  }
  const std::string fault = dtypes_fault(spec, row);
  return fault.empty() ? shape_fault(spec, row) : fault;
}

std::string option_fault(const OptionSpec& row) {
  if (row.get == nullptr || row.set == nullptr) return "has no accessors";
  if (row.is_family() && row.suffixes == nullptr) return "has no list of suffixes";
  if (row.min_value > row.max_value) return "has limits in the wrong order";
  return {};
}

}  // namespace

std::string spec_fault(const OpSpec& spec) {
  if (!is_identifier(spec.name)) return "the op has no proper name";
  if (!spec.make_args || !spec.copy_args || !spec.run || !spec.explain ||
      !spec.list_implementations) {
    return "the op lacks a function";
  }
  std::set<std::string_view> names;
  std::string fault = dim_fault(spec, names);
  if (!fault.empty()) return fault;
  for (const TensorSpec& row : spec.tensors) {
    if (!is_row_name(row.name)) return "tensor " + quoted(row.name) + " has no proper name";
    if (!names.insert(row.name).second) return quoted(row.name) + " stands for two things";
    try {
      fault = tensor_fault(spec, row);
    } catch (const Error& error) {
      fault = error.what();
    }
    if (!fault.empty()) return "tensor " + quoted(row.name) + " " + fault;
  }
  for (const OptionSpec& row : spec.options) {
    if (!is_row_name(row.name)) return "option " + quoted(row.name) + " has no proper name";
    if (!names.insert(row.name).second) return quoted(row.name) + " stands for two things";
    fault = option_fault(row);
    if (!fault.empty()) return "option " + quoted(row.name) + " " + fault;
  }
  return {};
}

}  // namespace flashtile
