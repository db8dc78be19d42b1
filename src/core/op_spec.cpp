// SPDX-License-Identifier: Apache-2.0
#include "core/op_spec.hpp"

#include <algorithm>
#include <mutex>

#include "core/text.hpp"
#include "core/validate.hpp"
#include "flashtile/error.hpp"

namespace flashtile {
namespace {

// The names of rows for an error text: "q, k, v".
template <class Row>
std::string names_of(std::span<const Row> rows) {
  std::string text;
  for (const Row& row : rows) {
    if (!text.empty()) text += ", ";
    text += row.name;
  }
  return text.empty() ? "none" : text;
}

template <class Row>
const Row* find_row(std::span<const Row> rows, std::string_view name) {
  for (const Row& row : rows) {
    if (row.name == name) return &row;
  }
  for (const Row& row : rows) {
    if (row.is_family() && !family_suffix(row.name, name).empty()) return &row;
  }
  return nullptr;
}

// The row behind a name that a caller gave; family rows need a name that an expression can use.
template <class Row>
const Row& row_of_caller(const OpSpec& spec, std::span<const Row> rows, const char* what,
                         std::string_view name) {
  const Row* row = find_row(rows, name);
  if (row == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, std::string(spec.name) + " has no " + what + " '" +
                                                 std::string(name) + "'; it has " + names_of(rows));
  }
  if (row->is_family() && !is_identifier(family_suffix(row->name, name))) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(spec.name) + ": " + what + " name is '" + std::string(name) +
                    "', expected letters, digits and _ behind '" +
                    std::string(row->name.substr(0, row->name.size() - 1)) + "'");
  }
  return *row;
}

TensorView* access(const TensorSpec& row, const void* args, std::string_view suffix) {
  // With create false the accessor changes nothing.
  return row.access(const_cast<void*>(args), suffix, /*create=*/false);
}

}  // namespace

const DimSpec* OpSpec::find_dim(std::string_view dim) const {
  for (const DimSpec& row : dims) {
    if (row.name == dim) return &row;
  }
  return nullptr;
}

const TensorSpec* OpSpec::find_tensor(std::string_view tensor) const {
  return find_row(tensors, tensor);
}

const OptionSpec* OpSpec::find_option(std::string_view option) const {
  return find_row(options, option);
}

const TensorSpec& OpSpec::tensor_row(std::string_view tensor) const {
  return row_of_caller(*this, tensors, "tensor", tensor);
}

const OptionSpec& OpSpec::option_row(std::string_view option) const {
  return row_of_caller(*this, options, "option", option);
}

std::string_view family_suffix(std::string_view row_name, std::string_view full_name) {
  if (!row_name.ends_with(".*")) return {};
  const std::string_view stem = row_name.substr(0, row_name.size() - 1);
  return full_name.starts_with(stem) ? full_name.substr(stem.size()) : std::string_view{};
}

std::string family_name(std::string_view row_name, std::string_view suffix) {
  return std::string(row_name.substr(0, row_name.size() - 1)) + std::string(suffix);
}

void OpCall::set_tensor(std::string_view name, const TensorView& tensor) {
  const TensorSpec& row = spec_->tensor_row(name);
  const std::string_view suffix = family_suffix(row.name, name);
  TensorView* place = row.access(args_.get(), suffix, /*create=*/bool(tensor));
  if (place != nullptr) *place = tensor;
}

TensorView OpCall::tensor(std::string_view name) const {
  const TensorSpec& row = spec_->tensor_row(name);
  const TensorView* place = access(row, args_.get(), family_suffix(row.name, name));
  return place != nullptr ? *place : TensorView{};
}

std::vector<std::string> OpCall::tensor_names() const {
  std::vector<std::string> names;
  for (const TensorSpec& row : spec_->tensors) {
    if (!row.is_family()) {
      const TensorView* place = access(row, args_.get(), {});
      if (place != nullptr && *place) names.emplace_back(row.name);
      continue;
    }
    for (const std::string& suffix : row.suffixes(args_.get())) {
      const TensorView* place = access(row, args_.get(), suffix);
      if (place != nullptr && *place) names.push_back(family_name(row.name, suffix));
    }
  }
  return names;
}

OptionValue OpCall::option(std::string_view name) const {
  const OptionSpec& row = spec_->option_row(name);
  return row.get(args_.get(), family_suffix(row.name, name));
}

std::string OpCall::whole_of(std::string_view name) const {
  const TensorView part = tensor(name);
  for (std::string& other : tensor_names()) {
    if (is_leading_part(part, tensor(other))) return std::move(other);
  }
  return {};
}

bool OpCall::writes(std::string_view name) const {
  const TensorSpec* row = spec_->find_tensor(name);
  if (row == nullptr || row->direction != Direction::kInOut) {
    return row != nullptr && row->direction == Direction::kOut;
  }
  return row->written_with.empty() || bool(tensor(row->written_with));
}

std::vector<std::string> OpCall::option_names() const {
  std::vector<std::string> names;
  for (const OptionSpec& row : spec_->options) {
    if (!row.is_family()) {
      if (!std::holds_alternative<std::monostate>(row.get(args_.get(), {}))) {
        names.emplace_back(row.name);
      }
      continue;
    }
    for (const std::string& suffix : row.suffixes(args_.get())) {
      names.push_back(family_name(row.name, suffix));
    }
  }
  return names;
}

void OpCall::set_option(std::string_view name, const OptionValue& value) {
  const OptionSpec& row = spec_->option_row(name);
  const OptionValue converted = convert_option(*spec_, row, name, value);
  check_option(*spec_, row, name, converted);
  row.set(args_.get(), family_suffix(row.name, name), converted);
}

void OpCall::set_option_text(std::string_view name, std::string_view text) {
  const OptionSpec& row = spec_->option_row(name);
  set_option(name, parse_option(*spec_, row, name, text));
}

namespace {

// Readers hold spans of the list while another thread may register an op, so a list is never
// changed: registering makes a new one and keeps the old ones.
struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<std::vector<const OpSpec*>>> versions;

  Registry() {
    const auto built_in = built_in_ops();
    versions.push_back(
        std::make_unique<std::vector<const OpSpec*>>(built_in.begin(), built_in.end()));
  }
};

Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

std::span<const OpSpec* const> all_ops() {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return *all.versions.back();
}

const OpSpec* find_op(std::string_view name) {
  for (const OpSpec* spec : all_ops()) {
    if (spec->name == name) return spec;
  }
  return nullptr;
}

void register_op(const OpSpec& spec) {
  const std::string fault = spec_fault(spec);
  if (!fault.empty()) {
    throw Error(ErrorCode::kInvalidArgument, std::string(spec.name) + ": " + fault);
  }
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const std::vector<const OpSpec*>& current = *all.versions.back();
  if (std::any_of(current.begin(), current.end(),
                  [&](const OpSpec* other) { return other->name == spec.name; })) {
    throw Error(ErrorCode::kInvalidArgument,
                "register_op: there is already an op '" + std::string(spec.name) + "'");
  }
  auto next = std::make_unique<std::vector<const OpSpec*>>(current);
  next->push_back(&spec);
  all.versions.push_back(std::move(next));
}

}  // namespace flashtile
