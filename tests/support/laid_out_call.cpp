// SPDX-License-Identifier: Apache-2.0
#include "support/laid_out_call.hpp"

#include <algorithm>
#include <numeric>

#include "support/tensor.hpp"
#include "tensors.hpp"

namespace flashtile::test {
namespace {

struct Placed {
  std::array<int64_t, TensorView::kMaxDims> strides{};
  int64_t first = 0;  ///< element (0, ..., 0), counted from the start of the memory
  int64_t count = 0;  ///< elements of the memory
};

Placed place(const TensorView& source, const Layout& layout) {
  std::vector<int> order = layout.order;
  if (order.empty()) {
    order.resize(static_cast<size_t>(source.ndim));
    std::iota(order.begin(), order.end(), 0);
  }
  Placed placed;
  int64_t stride = layout.step;
  int64_t last = 0;  // of the highest element
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const auto dim = static_cast<size_t>(*it);
    placed.strides[dim] = stride;
    last += std::max<int64_t>(source.shape[dim] - 1, 0) * stride;
    stride *= std::max<int64_t>(source.shape[dim], 1);
    if (it == order.rbegin()) stride += layout.gap;
  }
  placed.first = layout.shift;
  placed.count = layout.shift + last + 1;
  if (!layout.is_reversed) return placed;
  placed.first += last;
  for (int64_t& s : placed.strides) s = -s;
  return placed;
}

}  // namespace

LaidOutTensor::LaidOutTensor(const TensorView& source, const Layout& layout) {
  const Placed placed = place(source, layout);
  const int64_t bytes = dtype_bytes(source.dtype);
  const int64_t count = source.numel() == 0 ? 0 : placed.count;
  memory_ = std::make_shared<GuardedMemory>(static_cast<size_t>(count * bytes), layout.placement);
  view_ = TensorView(memory_->data() + (count == 0 ? 0 : placed.first * bytes), source.dtype,
                     std::span(source.shape.data(), static_cast<size_t>(source.ndim)),
                     std::span(placed.strides.data(), static_cast<size_t>(source.ndim)));
  cli::from_numbers(cli::to_numbers(source), view_);
  before_.assign(memory_->data(), memory_->data() + memory_->bytes());
}

bool LaidOutTensor::has_changed(bool with_elements) const {
  std::vector<char> now(memory_->data(), memory_->data() + memory_->bytes());
  if (!with_elements) {
    // The same view over both copies: elements are set alike, the rest has to be alike.
    const auto offset = static_cast<char*>(view_.data) - memory_->data();
    std::vector<char> before = before_;
    const std::vector<double> zeros(static_cast<size_t>(view_.numel()), 0.0);
    for (std::vector<char>* copy : {&now, &before}) {
      TensorView elements = view_;
      elements.data = copy->data() + offset;
      cli::from_numbers(zeros, elements);
    }
    return now != before;
  }
  return now != before_;
}

LaidOutCall::LaidOutCall(const OpCall& source, const LayoutOf& layout_of) : call_(source) {
  for (const std::string& name : source.tensor_names()) {
    const TensorView tensor = source.tensor(name);
    tensors_.emplace_back(name, LaidOutTensor(tensor, layout_of(name, tensor)));
    call_.set_tensor(name, tensors_.back().second.view());
  }
}

std::string LaidOutCall::damage() const {
  std::string names;
  for (const auto& [name, tensor] : tensors_) {
    const bool is_input = call_.spec().find_tensor(name)->direction == Direction::kIn;
    if (tensor.has_changed(/*with_elements=*/is_input)) names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

std::string differing_outputs(const OpCall& a, const OpCall& b) {
  std::string names;
  for (const std::string& name : a.tensor_names()) {
    if (a.spec().find_tensor(name)->direction != Direction::kOut) continue;
    if (same_bits(a.tensor(name), b.tensor(name))) continue;
    names += (names.empty() ? "" : ", ") + name + " by " +
             std::to_string(max_difference(a.tensor(name), b.tensor(name)));
  }
  return names;
}

}  // namespace flashtile::test
