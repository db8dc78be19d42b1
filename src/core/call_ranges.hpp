// SPDX-License-Identifier: Apache-2.0
//
// What memories of calls ask of tensors: where they lie, and what is left of that for calls alike.
#pragma once

#include <cstdint>

#include "core/kept_list.hpp"
#include "flashtile/tensor.hpp"

namespace flashtile {

/// Bytes that a view touches, from the first to the last.
struct ByteRange {
  int64_t begin, end;
  bool is_written;
};

ByteRange byte_range_of(const TensorView& tensor, bool is_written);

/// True when a range that is written meets another one.
bool has_meeting(const KeptList<ByteRange>& ranges);

/// Puts the alignment of an address in place of the address, as far as plans look at it; null stays
/// null.
void forget_address(TensorView& tensor);

}  // namespace flashtile
