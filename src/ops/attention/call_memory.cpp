// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/call_memory.hpp"

#include "core/env.hpp"

namespace flashtile {
namespace {

constexpr uintptr_t kAlignment = 256;  // what plans look at, at most

/// Bytes that a view touches, from the first to the last.
struct Range {
  int64_t begin, end;
  bool is_written;
};

Range range_of(const TensorView& tensor, bool is_written) {
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.data));
  const int64_t bytes = dtype_bytes(tensor.dtype);
  Range range = {address, address + bytes, is_written};
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

bool has_meeting(const std::vector<Range>& ranges) {
  for (const Range& output : ranges) {
    if (!output.is_written) continue;
    for (const Range& other : ranges) {
      if (&other != &output && output.begin < other.end && other.begin < output.end) return true;
    }
  }
  return false;
}

/// The alignment of an address in place of the address; null stays null.
void forget_address(TensorView& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  if (address != 0) tensor.data = reinterpret_cast<void*>(kAlignment + address % kAlignment);
}

}  // namespace

CallKey::CallKey(const AttentionArgs& call_args, bool backward, const Context& context)
    : args(call_args), is_backward(backward), asked(context.implementation) {
  asked += '\n';
  asked += env_implementation();
  const OpSpec& spec = is_backward ? attention_bwd_spec() : attention_fwd_spec();
  std::vector<Range> ranges;
  ranges.reserve(32);
  const auto take = [&](TensorView* tensor, bool is_written) {
    if (tensor == nullptr || !*tensor) return;
    // Lengths in host memory are read by the checks.
    may_be_kept = may_be_kept && tensor->device.type == DeviceType::kCuda;
    ranges.push_back(range_of(*tensor, is_written));
    forget_address(*tensor);
  };
  for (const TensorSpec& row : spec.tensors) {
    const bool is_written = row.direction != Direction::kIn;
    if (!row.is_family()) {
      take(row.access(&args, {}, /*create=*/false), is_written);
      continue;
    }
    for (const std::string& suffix : row.suffixes(&args)) {
      take(row.access(&args, suffix, /*create=*/false), is_written);
    }
  }
  may_be_kept = may_be_kept && !has_meeting(ranges) && context.arch.empty() &&
                args.dropout_offset >= 0 && args.dropout_offset >> 32 == 0;
  args.dropout_seed = 0;
  args.dropout_offset = 0;
}

const PreparedCall* CallMemory::find(const CallKey& key, const AttentionArgs& args) {
  if (!key.may_be_kept) return nullptr;
  for (const std::unique_ptr<Entry>& entry : entries_) {
    if (!(entry->key == key)) continue;
    Dropout& dropout = entry->call.problem.dropout;
    if (dropout.is_on) {
      dropout.seed = args.dropout_seed;
      dropout.offset = static_cast<uint32_t>(args.dropout_offset);
    }
    return &entry->call;
  }
  return nullptr;
}

const PreparedCall& CallMemory::keep(CallKey key, PreparedCall call) {
  auto entry = std::make_unique<Entry>(Entry{std::move(key), std::move(call)});
  if (entries_.size() < kMaxEntries) {
    return entries_.emplace_back(std::move(entry))->call;
  }
  entries_[oldest_] = std::move(entry);
  const PreparedCall& kept = entries_[oldest_]->call;
  oldest_ = (oldest_ + 1) % kMaxEntries;
  return kept;
}

}  // namespace flashtile
