// SPDX-License-Identifier: Apache-2.0
#include "core/call_key.hpp"

#include <algorithm>
#include <cstddef>

#include "core/env.hpp"
#include "core/validate.hpp"

namespace flashtile {
namespace {

constexpr uintptr_t kPlanAlignment = 256;  // what plans look at, at most

/// Steps of a search for a shared element. Slices of one buffer take a few; a call that takes more
/// is checked as one that is new.
constexpr int64_t kMaxSteps = 1 << 10;

bool share_memory(const TensorView& a, const TensorView& b) {
  const auto is_view = [](const TensorView& view) {
    return view.ndim >= 0 && view.ndim <= TensorView::kMaxDims;
  };
  return !is_view(a) || !is_view(b) || views_overlap(a, b, kMaxSteps);
}

}  // namespace

void forget_address(TensorView& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  if (address == 0) return;
  // An unknown dtype has no bytes; the checks refuse it.
  const int64_t element = std::max<int64_t>(1, dtype_bytes(tensor.dtype));
  const auto alignment =
      tensor.device.type == DeviceType::kCpu ? static_cast<uintptr_t>(element) : kPlanAlignment;
  tensor.data = reinterpret_cast<void*>(kPlanAlignment + address % alignment);
}

void assign_asked(std::string& asked, const Context& context) {
  asked = context.implementation;
  asked += '\n';
  asked += env_implementation();
}

void CallTensors::add(TensorView& tensor, bool is_written) {
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.data));
  const int64_t bytes = dtype_bytes(tensor.dtype);
  Entry entry = {&tensor, address, address + bytes, is_written};
  for (int d = 0; d < tensor.ndim && d < TensorView::kMaxDims; ++d) {
    const auto dim = static_cast<size_t>(d);
    // Nothing has been checked yet: what overflows wraps, and the checks refuse it later.
    const auto reach = static_cast<int64_t>(static_cast<uint64_t>(tensor.shape[dim] - 1) *
                                            static_cast<uint64_t>(tensor.strides[dim]) *
                                            static_cast<uint64_t>(bytes));
    int64_t& side = reach < 0 ? entry.begin : entry.end;
    side = static_cast<int64_t>(static_cast<uint64_t>(side) + static_cast<uint64_t>(reach));
  }
  tensors_.push_back(entry);
}

bool CallTensors::overlap() const {
  for (const Entry& output : tensors_) {
    if (!output.is_written) continue;
    for (const Entry& other : tensors_) {
      const bool has_meeting =
          &other != &output && output.begin < other.end && other.begin < output.end;
      if (has_meeting && share_memory(*output.tensor, *other.tensor)) return true;
    }
  }
  return false;
}

void CallTensors::forget_addresses() const {
  for (const Entry& entry : tensors_) forget_address(*entry.tensor);
}

}  // namespace flashtile
