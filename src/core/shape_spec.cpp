// SPDX-License-Identifier: Apache-2.0
#include "core/shape_spec.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "core/text.hpp"
#include "flashtile/error.hpp"

namespace flashtile {
namespace {

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

// The part before the first `separator`, which leaves `text` together with it.
std::string_view cut(std::string_view& text, char separator) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

[[noreturn]] void bad_shape(std::string_view shape, const char* what) {
  throw Error(ErrorCode::kInternal, "operator table: shape '" + std::string(shape) + "': " + what);
}

ShapeEntry parse_entry(std::string_view shape, std::string_view text) {
  ShapeEntry entry;
  if (const auto number = parse_int(text)) {
    entry.number = *number;
    if (entry.number < 0) bad_shape(shape, "a size is negative");
    return entry;
  }
  entry.is_plus_one = text.ends_with("+1");
  if (entry.is_plus_one) text.remove_suffix(2);
  entry.may_be_one = text.ends_with('?');
  if (entry.may_be_one) text.remove_suffix(1);
  if (!is_identifier(text)) bad_shape(shape, "an entry is no size");
  entry.name = text;
  return entry;
}

ShapeForm parse_form(std::string_view shape, std::string_view text) {
  ShapeForm form;
  text = trimmed(text);
  if (text.starts_with('@')) {
    text.remove_prefix(1);
    form.condition = trimmed(cut(text, ':'));
  }
  for (text = trimmed(text); !text.empty(); text = trimmed(text)) {
    if (form.ndim == TensorView::kMaxDims) bad_shape(shape, "too many dimensions");
    form.entries[static_cast<size_t>(form.ndim++)] = parse_entry(shape, cut(text, ' '));
  }
  return form;
}

std::string entry_text(const ShapeEntry& entry) {
  if (entry.name.empty()) return std::to_string(entry.number);
  std::string text(entry.name);
  if (entry.is_plus_one) text += " + 1";
  if (entry.may_be_one) text += " or 1";
  return text;
}

std::string dims_text(const TensorView& view) {
  std::string text;
  for (size_t i = 0; i < static_cast<size_t>(view.ndim); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(view.shape[i]);
  }
  return text;
}

/// Collects sizes tensor by tensor and remembers where each came from.
class Binder {
 public:
  explicit Binder(Sizes& sizes) : sizes_(sizes) {}

  void bind(const GivenTensor& tensor, const ShapeForm& form, bool is_broadcast_pass) {
    for (size_t i = 0; i < static_cast<size_t>(form.ndim); ++i) {
      const ShapeEntry& entry = form.entries[i];
      if (entry.may_be_one != is_broadcast_pass) continue;
      bind_entry(tensor, entry, i);
    }
  }

  void add_fault(std::string text) {
    if (fault_.empty()) fault_ = std::move(text);
  }
  std::string take_fault() { return std::move(fault_); }

 private:
  void bind_entry(const GivenTensor& tensor, const ShapeEntry& entry, size_t dim) {
    const int64_t found = tensor.view.shape[dim];
    const auto where = [&] { return "dimension " + std::to_string(dim) + " of " + tensor.name(); };
    if (entry.name.empty()) {
      if (found != entry.number) {
        add_fault(where() + " is " + std::to_string(found) + ", expected " +
                  std::to_string(entry.number));
      }
      return;
    }
    if (entry.is_plus_one && found == 0) {
      add_fault(where() + " is 0, expected " + entry_text(entry));
      return;
    }
    if (entry.may_be_one && found == 1) return;
    const int64_t size = entry.is_plus_one ? found - 1 : found;
    const auto known = sizes_.find(entry.name);
    if (known == sizes_.end()) {
      sizes_.emplace(std::string(entry.name), size);
      owners_.emplace_back(entry.name, tensor.name());
    } else if (known->second != size) {
      add_fault(std::string(entry.name) + " of " + tensor.name() + " is " + std::to_string(size) +
                (entry.may_be_one
                     ? ", expected 1 or that of " + owner_of(entry.name) + " (" +
                           std::to_string(known->second) + ")"
                     : ", of " + owner_of(entry.name) + " " + std::to_string(known->second)));
    }
  }

  std::string owner_of(std::string_view size_name) const {
    for (const auto& [name, owner] : owners_) {
      if (name == size_name) return owner;
    }
    return "the problem";
  }

  Sizes& sizes_;
  std::vector<std::pair<std::string_view, std::string>> owners_;
  std::string fault_;
};

// The alternative with the tensor's number of dimensions; null after adding a fault.
const ShapeForm* form_of(const GivenTensor& tensor, std::span<const ShapeForm> forms,
                         Binder& binder) {
  for (const ShapeForm& form : forms) {
    if (form.ndim == tensor.view.ndim) return &form;
  }
  std::string expected;
  for (const ShapeForm& form : forms) {
    if (!expected.empty()) expected += " or ";
    expected += std::to_string(form.ndim) + ": " + to_string(form);
  }
  const int32_t ndim = tensor.view.ndim;
  binder.add_fault(
      tensor.name() + " has " + std::to_string(ndim) + (ndim == 1 ? " dimension" : " dimensions") +
      (ndim == 0 ? "" : " (shape " + dims_text(tensor.view) + ")") + ", expected " + expected);
  return nullptr;
}

void check_like_input(const GivenTensor& gradient, std::span<const GivenTensor> tensors,
                      Binder& binder) {
  const GivenTensor* input = find_given(tensors, gradient.row->gradient_of, gradient.suffix);
  if (input == nullptr) return;
  const TensorView& a = gradient.view;
  const TensorView& b = input->view;
  if (a.ndim != b.ndim || !std::equal(a.shape.begin(), a.shape.begin() + a.ndim, b.shape.begin())) {
    binder.add_fault("shape of " + gradient.name() + " is (" + dims_text(a) +
                     "), expected that of " + input->name() + " (" + dims_text(b) + ")");
  }
}

/// The alternatives of a column, which refer to a copy of its text.
const std::vector<ShapeForm>& parsed_once(std::string_view shape) {
  thread_local std::map<std::string, std::vector<ShapeForm>, std::less<>> columns;
  auto found = columns.find(shape);
  if (found == columns.end()) {
    found = columns.emplace(std::string(shape), std::vector<ShapeForm>()).first;
    found->second = parse_shape(found->first);
  }
  return found->second;
}

}  // namespace

std::string to_string(const ShapeForm& form) {
  std::string text = "(";
  for (const ShapeEntry& entry : form.dims()) {
    if (text.size() > 1) text += ", ";
    text += entry_text(entry);
  }
  return text + ")";
}

std::vector<ShapeForm> parse_shape(std::string_view shape) {
  std::vector<ShapeForm> forms;
  std::string_view rest = shape;
  while (!trimmed(rest).empty()) forms.push_back(parse_form(shape, cut(rest, ';')));
  return forms;
}

std::span<const ShapeForm> shape_forms(std::string_view shape,
                                       const std::function<bool(std::string_view)>& is_given) {
  const std::vector<ShapeForm>& all = parsed_once(shape);
  const auto first = std::find_if(all.begin(), all.end(), [&](const ShapeForm& form) {
    return form.condition.empty() || is_given(form.condition);
  });
  const auto last = std::find_if(
      first, all.end(), [&](const ShapeForm& form) { return form.condition != first->condition; });
  return {first, last};
}

std::vector<GivenTensor> given_tensors(const OpSpec& spec, const void* args) {
  std::vector<GivenTensor> result;
  const auto add = [&](const TensorSpec& row, std::string_view suffix) {
    // With create false an accessor changes nothing.
    const TensorView* view = row.access(const_cast<void*>(args), suffix, /*create=*/false);
    if (view != nullptr && *view) result.push_back({&row, std::string(suffix), *view});
  };
  for (const TensorSpec& row : spec.tensors) {
    if (!row.is_family()) {
      add(row, {});
    } else {
      for (const std::string& suffix : row.suffixes(args)) add(row, suffix);
    }
  }
  return result;
}

const GivenTensor* find_given(std::span<const GivenTensor> tensors, std::string_view row_name,
                              std::string_view suffix) {
  for (const GivenTensor& tensor : tensors) {
    if (tensor.row->name == row_name && (!tensor.row->is_family() || tensor.suffix == suffix)) {
      return &tensor;
    }
  }
  return nullptr;
}

std::string bind_sizes(std::span<const GivenTensor> tensors, Sizes& sizes) {
  return bind_sizes(tensors, sizes,
                    [&](std::string_view name) { return find_given(tensors, name) != nullptr; });
}

std::string bind_sizes(std::span<const GivenTensor> tensors, Sizes& sizes,
                       const std::function<bool(std::string_view)>& is_given) {
  Binder binder(sizes);
  std::vector<std::pair<const GivenTensor*, const ShapeForm*>> broadcast;
  for (const GivenTensor& tensor : tensors) {
    if (!tensor.row->gradient_of.empty()) check_like_input(tensor, tensors, binder);
    const std::span<const ShapeForm> forms = shape_forms(tensor.row->shape, is_given);
    if (forms.empty()) continue;
    const ShapeForm* form = form_of(tensor, forms, binder);
    if (form == nullptr) continue;
    binder.bind(tensor, *form, /*is_broadcast_pass=*/false);
    for (const ShapeEntry& entry : form->dims()) {
      if (!entry.may_be_one) continue;
      broadcast.emplace_back(&tensor, form);
      break;
    }
  }
  // A broadcast dimension of size 1 says nothing, so that all others come first.
  for (const auto& [tensor, form] : broadcast) {
    binder.bind(*tensor, *form, /*is_broadcast_pass=*/true);
  }
  return binder.take_fault();
}

}  // namespace flashtile
