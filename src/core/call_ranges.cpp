// SPDX-License-Identifier: Apache-2.0
#include "core/call_ranges.hpp"

#include <algorithm>
#include <cstddef>

namespace flashtile {
namespace {

constexpr uintptr_t kPlanAlignment = 256;  // what plans look at, at most

}  // namespace

ByteRange byte_range_of(const TensorView& tensor, bool is_written) {
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.data));
  const int64_t bytes = dtype_bytes(tensor.dtype);
  ByteRange range = {address, address + bytes, is_written};
  for (int d = 0; d < tensor.ndim && d < TensorView::kMaxDims; ++d) {
    const auto dim = static_cast<size_t>(d);
    // Nothing has been checked yet: what overflows wraps, and the checks refuse it later.
    const auto reach = static_cast<int64_t>(static_cast<uint64_t>(tensor.shape[dim] - 1) *
                                            static_cast<uint64_t>(tensor.strides[dim]) *
                                            static_cast<uint64_t>(bytes));
    int64_t& side = reach < 0 ? range.begin : range.end;
    side = static_cast<int64_t>(static_cast<uint64_t>(side) + static_cast<uint64_t>(reach));
  }
  return range;
}

bool has_meeting(const KeptList<ByteRange>& ranges) {
  for (const ByteRange& output : ranges) {
    if (!output.is_written) continue;
    for (const ByteRange& other : ranges) {
      if (&other != &output && output.begin < other.end && other.begin < output.end) return true;
    }
  }
  return false;
}

void forget_address(TensorView& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  if (address == 0) return;
  // An unknown dtype has no bytes; the checks refuse it.
  const int64_t element = std::max<int64_t>(1, dtype_bytes(tensor.dtype));
  const auto alignment =
      tensor.device.type == DeviceType::kCpu ? static_cast<uintptr_t>(element) : kPlanAlignment;
  tensor.data = reinterpret_cast<void*>(kPlanAlignment + address % alignment);
}

}  // namespace flashtile
