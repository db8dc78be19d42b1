// SPDX-License-Identifier: Apache-2.0
#include "core/problem_presence.hpp"

#include <algorithm>

namespace flashtile {

Presence::Presence(const ProblemText& problem) : problem_(problem) {
  for (const bool is_gradient_pass : {false, true}) {
    for (const TensorSpec& row : problem.spec->tensors) {
      if (row.gradient_of.empty() == is_gradient_pass) continue;
      if (row.is_family()) {
        add_family(row);
      } else {
        add_row(row);
      }
    }
  }
}

const PresentTensor* Presence::find(std::string_view row_name, std::string_view suffix) const {
  for (const PresentTensor& tensor : tensors_) {
    if (tensor.row->name == row_name && (!tensor.row->is_family() || tensor.suffix == suffix)) {
      return &tensor;
    }
  }
  return nullptr;
}

DType Presence::dtype_of(const PresentTensor& tensor) const { return default_dtype(tensor, 0); }

DType Presence::default_dtype(const PresentTensor& tensor, int depth) const {
  if (tensor.item != nullptr && tensor.item->dtype != DType::kNone) return tensor.item->dtype;
  const bool has_values = tensor.item != nullptr && tensor.item->has_values;
  DType first = DType::kNone;
  std::string_view rest = tensor.row->dtypes;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(' '), rest.size());
    const std::string_view word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (word.starts_with('=')) {
      // A circle of references ends somewhere.
      const PresentTensor* other = find(word.substr(1), tensor.suffix);
      if (other != nullptr && depth < 8) return default_dtype(*other, depth + 1);
      continue;
    }
    const DType dtype = dtype_from_name(word);
    if (has_values ? has_text_values(dtype) : dtype == problem_.dtype) return dtype;
    if (first == DType::kNone) first = dtype;
  }
  return first == DType::kNone ? problem_.dtype : first;
}

void Presence::add_row(const TensorSpec& row) {
  const TensorItem* item = problem_.find_tensor(row.name);
  const bool is_wanted = row.required || item != nullptr || has_floating_input(row, {});
  if (is_wanted && (item == nullptr || !item->is_left_out)) tensors_.push_back({&row, {}, item});
}

void Presence::add_family(const TensorSpec& row) {
  for (const TensorItem& item : problem_.tensors) {
    const std::string_view suffix = family_suffix(row.name, item.name);
    if (suffix.empty() || problem_.spec->find_tensor(item.name) != &row) continue;
    if (!item.is_left_out) tensors_.push_back({&row, std::string(suffix), &item});
  }
  if (row.gradient_of.empty()) return;
  std::vector<std::string> suffixes;
  for (const PresentTensor& input : tensors_) {
    if (input.row->name == row.gradient_of) suffixes.push_back(input.suffix);
  }
  for (const std::string& suffix : suffixes) {
    const bool is_said = problem_.find_tensor(family_name(row.name, suffix)) != nullptr;
    if (!is_said && has_floating_input(row, suffix)) tensors_.push_back({&row, suffix, nullptr});
  }
}

bool Presence::has_floating_input(const TensorSpec& row, std::string_view suffix) const {
  if (row.gradient_of.empty()) return false;
  const PresentTensor* input = find(row.gradient_of, suffix);
  return input != nullptr && is_floating(dtype_of(*input));
}

}  // namespace flashtile
