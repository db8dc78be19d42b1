// SPDX-License-Identifier: Apache-2.0
//
// From a call to its problem text; and values of a text to and from memory.
#include <algorithm>
#include <cstring>

#include "core/problem_presence.hpp"
#include "core/problem_text.hpp"
#include "core/shape_spec.hpp"
#include "core/validate.hpp"

namespace flashtile {
namespace {

/// Calls visit(address, flat index) for each element, in row-major order.
template <class Visit>
void for_each_element(const TensorView& view, const Visit& visit) {
  std::array<int64_t, TensorView::kMaxDims> index{};
  const auto ndim = static_cast<size_t>(view.ndim);
  const int64_t numel = view.numel();
  for (int64_t flat = 0; flat < numel; ++flat) {
    int64_t offset = 0;
    for (size_t i = 0; i < ndim; ++i) offset += index[i] * view.strides[i];
    visit(static_cast<char*>(view.data) + offset * dtype_bytes(view.dtype), flat);
    for (size_t i = ndim; i-- > 0;) {
      if (++index[i] < view.shape[i]) break;
      index[i] = 0;
    }
  }
}

std::vector<int64_t> read_values(const TensorView& view) {
  std::vector<int64_t> values;
  for_each_element(view, [&](const char* address, int64_t) {
    int64_t value = 0;
    if (view.dtype == DType::kI64) {
      std::memcpy(&value, address, sizeof(value));
    } else {
      int32_t narrow = 0;
      std::memcpy(&narrow, address, sizeof(narrow));
      value = narrow;
    }
    values.push_back(value);
  });
  return values;
}

constexpr int64_t kMaxWrittenValues = 32;

bool has_readable_values(const TensorView& view) {
  if (!has_text_values(view.dtype) || view.device.type != DeviceType::kCpu) return false;
  const int64_t numel = view.numel();
  return numel > 0 && numel <= kMaxWrittenValues && view.data != nullptr;
}

/// The dtype that most tensors of a call follow: that of the first input which may be floating.
DType leading_dtype(std::span<const GivenTensor> tensors) {
  for (const GivenTensor& tensor : tensors) {
    const std::string_view dtypes = tensor.row->dtypes;
    const bool is_free = dtypes.find(' ') != std::string_view::npos && !dtypes.starts_with('=');
    if (is_free && tensor.row->required && is_floating(tensor.view.dtype)) return tensor.view.dtype;
  }
  return DType::kF32;
}

/// The shape as a text writes it: codes of sizes where they agree, numbers elsewhere.
std::vector<std::string> dims_of(const OpSpec& spec, const Sizes& sizes, const GivenTensor& tensor,
                                 std::span<const ShapeForm> forms) {
  std::vector<std::string> dims;
  for (size_t i = 0; i < static_cast<size_t>(tensor.view.ndim); ++i) {
    dims.push_back(std::to_string(tensor.view.shape[i]));
    for (const ShapeForm& form : forms) {
      if (form.ndim != tensor.view.ndim || form.entries[i].name.empty()) continue;
      const DimSpec* dim = spec.find_dim(form.entries[i].name);
      const auto size = sizes.find(form.entries[i].name);
      if (dim == nullptr || size == sizes.end() || form.entries[i].is_plus_one) continue;
      if (size->second == tensor.view.shape[i])
        dims.back() = dim->code.empty() ? dim->name : dim->code;
    }
  }
  return dims;
}

/// True when a text need not write the shape out.
bool has_own_shape(const GivenTensor& tensor, std::span<const GivenTensor> all, const Sizes& sizes,
                   std::span<const ShapeForm> forms) {
  const TensorView& view = tensor.view;
  if (has_readable_values(view) && view.ndim == 1) return true;
  if (!tensor.row->gradient_of.empty()) {
    const GivenTensor* input = find_given(all, tensor.row->gradient_of, tensor.suffix);
    if (input != nullptr) {
      return input->view.ndim == view.ndim &&
             std::equal(view.shape.begin(), view.shape.begin() + view.ndim,
                        input->view.shape.begin());
    }
  }
  if (forms.empty() || forms.front().ndim != view.ndim) return false;
  for (size_t i = 0; i < static_cast<size_t>(view.ndim); ++i) {
    const ShapeEntry& entry = forms.front().entries[i];
    int64_t size = entry.number;
    if (!entry.name.empty()) {
      const auto known = sizes.find(entry.name);
      if (known == sizes.end()) return false;
      size = known->second + (entry.is_plus_one ? 1 : 0);
    }
    if (size != view.shape[i]) return false;
  }
  return true;
}

/// Adds what a text must say about a tensor; nothing when it goes without saying.
void describe_tensor(const GivenTensor& tensor, std::span<const GivenTensor> all,
                     const Sizes& sizes, ProblemText& problem) {
  const TensorSpec& row = *tensor.row;
  const auto forms = shape_forms(
      row.shape, [&](std::string_view name) { return find_given(all, name) != nullptr; });
  const bool goes_without_saying = Presence(problem).find(row.name, tensor.suffix) != nullptr;
  TensorItem item;
  item.name = tensor.name();
  for (const GivenTensor& other : all) {
    if (is_leading_part(tensor.view, other.view)) item.whole = other.name();
  }
  if (has_readable_values(tensor.view)) {
    item.has_values = true;
    item.values = read_values(tensor.view);
  }
  item.has_dims = !has_own_shape(tensor, all, sizes, forms);
  if (item.has_dims) item.dims = dims_of(*problem.spec, sizes, tensor, forms);
  problem.tensors.push_back(std::move(item));

  const Presence presence(problem);
  const PresentTensor* self = presence.find(row.name, tensor.suffix);
  const bool has_own_dtype = self == nullptr || presence.dtype_of(*self) == tensor.view.dtype;
  TensorItem& added = problem.tensors.back();
  if (!has_own_dtype) added.dtype = tensor.view.dtype;
  if (goes_without_saying && has_own_dtype && !added.has_dims && !added.has_values &&
      added.whole.empty()) {
    problem.tensors.pop_back();
  }
}

/// Gradients that a text would bring along and the call does not have.
void leave_out_others(std::span<const GivenTensor> tensors, ProblemText& problem) {
  std::vector<TensorItem> left_out;
  const Presence presence(problem);
  for (const PresentTensor& tensor : presence.tensors()) {
    if (tensor.row->gradient_of.empty() || tensor.item != nullptr) continue;
    if (find_given(tensors, tensor.row->name, tensor.suffix) != nullptr) continue;
    left_out.emplace_back();
    left_out.back().name = tensor.name();
    left_out.back().is_left_out = true;
  }
  problem.tensors.insert(problem.tensors.end(), left_out.begin(), left_out.end());
}

/// Takes away the sizes that follow from the rest of the text. Those that nothing but the default
/// of 1 gives stay, for the reader.
void drop_implied_sizes(ProblemText& problem) {
  const Sizes bound = problem.sizes;
  for (const auto& [name, size] : bound) {
    const DimSpec* dim = problem.spec->find_dim(name);
    if (size == 1 && (dim == nullptr || dim->default_from.empty())) continue;
    problem.sizes.erase(name);
    const Sizes resolved = resolve_sizes(problem);
    const bool is_same = std::all_of(bound.begin(), bound.end(), [&](const auto& entry) {
      const auto found = resolved.find(entry.first);
      return found != resolved.end() && found->second == entry.second;
    });
    if (!is_same) problem.sizes.emplace(name, size);
  }
}

}  // namespace

void write_values(const TensorItem& item, const TensorView& tensor) {
  for_each_element(tensor, [&](char* address, int64_t flat) {
    const int64_t value = item.values[static_cast<size_t>(flat)];
    if (tensor.dtype == DType::kI64) {
      std::memcpy(address, &value, sizeof(value));
    } else {
      const auto narrow = static_cast<int32_t>(value);
      std::memcpy(address, &narrow, sizeof(narrow));
    }
  });
}

std::string problem_text(const OpCall& call) {
  ProblemText problem;
  problem.spec = &call.spec();
  const std::vector<GivenTensor> tensors = given_tensors(call.spec(), call.args());
  problem.dtype = leading_dtype(tensors);
  bind_sizes(tensors, problem.sizes);
  const Sizes bound = problem.sizes;
  for (const GivenTensor& tensor : tensors) describe_tensor(tensor, tensors, bound, problem);
  leave_out_others(tensors, problem);
  for (const std::string& name : call.option_names()) {
    problem.options.emplace_back(name, call.option(name));
  }
  drop_implied_sizes(problem);
  return format_problem(problem);
}

}  // namespace flashtile
