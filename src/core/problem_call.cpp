// SPDX-License-Identifier: Apache-2.0
//
// From a problem text to a call without memory.
#include <algorithm>
#include <limits>

#include "core/problem_presence.hpp"
#include "core/problem_text.hpp"
#include "core/shape_spec.hpp"
#include "core/text.hpp"
#include "core/validate.hpp"
#include "flashtile/error.hpp"

namespace flashtile {
namespace {

[[noreturn]] void fail(const OpSpec& spec, const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, std::string(spec.name) + ": " + text);
}

std::string_view dim_name(const OpSpec& spec, std::string_view code_or_name) {
  for (const DimSpec& dim : spec.dims) {
    if (dim.code == code_or_name || dim.name == code_or_name) return dim.name;
  }
  return {};
}

/// A dimension as a text writes it; nothing when it names a size that is not in `sizes`.
std::optional<int64_t> dim_value(const OpSpec& spec, const Sizes& sizes, std::string_view text) {
  const bool is_plus_one = text.ends_with("+1");
  if (is_plus_one) text.remove_suffix(2);
  auto value = parse_int(text);
  if (!value) {
    const auto size = sizes.find(dim_name(spec, text));
    if (size == sizes.end()) return std::nullopt;
    value = size->second;
  }
  if (is_plus_one && *value == std::numeric_limits<int64_t>::max()) return std::nullopt;
  return *value + (is_plus_one ? 1 : 0);
}

/// The shape that an item writes out; nothing when it has none, or one with unknown sizes.
std::optional<std::vector<int64_t>> item_shape(const OpSpec& spec, const Sizes& sizes,
                                               const TensorItem* item) {
  if (item == nullptr || (!item->has_dims && !item->has_values)) return std::nullopt;
  if (!item->has_dims) return std::vector<int64_t>{static_cast<int64_t>(item->values.size())};
  std::vector<int64_t> shape;
  for (const std::string& dim : item->dims) {
    const auto value = dim_value(spec, sizes, dim);
    if (!value) return std::nullopt;
    shape.push_back(*value);
  }
  return shape;
}

/// Sizes that shapes in the text fix, as far as its written sizes make them known.
void bind_item_shapes(const ProblemText& problem, const Presence& presence, Sizes& sizes) {
  std::vector<GivenTensor> known;
  for (const PresentTensor& tensor : presence.tensors()) {
    const auto shape = item_shape(*problem.spec, sizes, tensor.item);
    if (!shape) continue;
    GivenTensor given{tensor.row, tensor.suffix, {}};
    given.view.dtype = presence.dtype_of(tensor);
    given.view.ndim = static_cast<int32_t>(shape->size());
    std::copy(shape->begin(), shape->end(), given.view.shape.begin());
    known.push_back(std::move(given));
  }
  // A disagreement is found by the validation of the call, which names both sides.
  bind_sizes(known, sizes, [&](std::string_view name) { return presence.find(name) != nullptr; });
}

std::vector<int64_t> shape_of(const ProblemText& problem, const Presence& presence,
                              const Sizes& sizes, const PresentTensor& tensor) {
  const OpSpec& spec = *problem.spec;
  if (const auto shape = item_shape(spec, sizes, tensor.item)) return *shape;
  if (!tensor.row->gradient_of.empty()) {
    const PresentTensor* input = presence.find(tensor.row->gradient_of, tensor.suffix);
    if (input != nullptr) return shape_of(problem, presence, sizes, *input);
  }
  const auto forms = shape_forms(
      tensor.row->shape, [&](std::string_view name) { return presence.find(name) != nullptr; });
  if (forms.empty()) {
    fail(spec, tensor.name() + " has no shape, expected one, such as " + tensor.name() + "[16]");
  }
  std::vector<int64_t> shape;
  for (const ShapeEntry& entry : forms.front().dims()) {
    int64_t size = entry.number;
    if (!entry.name.empty()) {
      size = size_or_default(spec, sizes, entry.name);
      if (entry.is_plus_one && __builtin_add_overflow(size, 1, &size)) {
        fail(spec, std::string(entry.name) + " is too large");
      }
    }
    shape.push_back(size);
  }
  return shape;
}

void check_values(const OpSpec& spec, const TensorItem& item, const TensorView& view) {
  if (!item.has_values) return;
  if (!has_text_values(view.dtype)) {
    fail(spec, item.name + " has values, but its dtype is " + std::string(dtype_name(view.dtype)) +
                   ", expected i32 or i64");
  }
  if (view.numel() != static_cast<int64_t>(item.values.size())) {
    fail(spec, item.name + " has " + std::to_string(item.values.size()) + " values, expected " +
                   std::to_string(view.numel()));
  }
  for (int64_t value : item.values) {
    if (view.dtype == DType::kI64 || static_cast<int32_t>(value) == value) continue;
    fail(spec, "value " + std::to_string(value) + " of " + item.name + " does not fit into i32");
  }
}

/// The part of `whole` that has the shape of `view`.
TensorView leading_part(const OpSpec& spec, const TensorView& whole, const TensorItem& item,
                        const TensorView& view) {
  TensorView part = view;
  part.strides = whole.strides;
  if (!is_leading_part(part, whole)) {
    fail(spec, item.name + " is to be the first columns of " + item.whole + ", but is " +
                   to_string(view) + " and " + (whole ? to_string(whole) : "not there"));
  }
  return part;
}

}  // namespace

int64_t size_or_default(const OpSpec& spec, const Sizes& sizes, std::string_view name) {
  // Defaults that refer to each other in a circle end at 1.
  for (size_t step = 0; step <= spec.dims.size(); ++step) {
    const auto size = sizes.find(name);
    if (size != sizes.end()) return size->second;
    const DimSpec* dim = spec.find_dim(name);
    if (dim == nullptr || dim->default_from.empty()) return 1;
    name = dim->default_from;
  }
  return 1;
}

Sizes resolve_sizes(const ProblemText& problem) {
  Sizes sizes = problem.sizes;
  bind_item_shapes(problem, Presence(problem), sizes);
  if (problem.spec->derive_sizes != nullptr) problem.spec->derive_sizes(problem, sizes);
  Sizes result;
  for (const DimSpec& dim : problem.spec->dims) {
    result.emplace(std::string(dim.name), size_or_default(*problem.spec, sizes, dim.name));
  }
  return result;
}

OpCall make_call(const ProblemText& problem) {
  const OpSpec& spec = *problem.spec;
  const Sizes sizes = resolve_sizes(problem);
  const Presence presence(problem);
  OpCall call(spec);
  for (const PresentTensor& tensor : presence.tensors()) {
    const std::vector<int64_t> shape = shape_of(problem, presence, sizes, tensor);
    try {
      TensorView view(nullptr, presence.dtype_of(tensor), shape);
      if (tensor.item != nullptr && !tensor.item->whole.empty()) {
        view = leading_part(spec, call.tensor(tensor.item->whole), *tensor.item, view);
      }
      if (tensor.item != nullptr) check_values(spec, *tensor.item, view);
      call.set_tensor(tensor.name(), view);
    } catch (const Error& error) {
      if (std::string_view(error.what()).starts_with(spec.name)) throw;
      fail(spec, tensor.name() + ": " + error.what());
    }
  }
  for (const auto& [name, value] : problem.options) call.set_option(name, value);
  return call;
}

}  // namespace flashtile
