// SPDX-License-Identifier: Apache-2.0
//
// A call whose tensors are moved into guarded memory with other strides.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/op_spec.hpp"
#include "support/guarded_memory.hpp"

namespace flashtile::test {

/// Where the elements of a tensor lie.
struct Layout {
  /// Dimensions from the outermost in memory to the innermost; empty: in their own order.
  std::vector<int> order = {};
  bool is_reversed = false;  ///< every stride negative
  int64_t gap = 0;           ///< unused elements behind each row of the innermost dimension
  int64_t step = 1;          ///< distance of neighbours in the innermost dimension
  int64_t shift = 0;         ///< unused elements before the first one
  Placement placement = Placement::kEndsAtGuard;
};

/// A copy of a tensor in memory of its own; what is not an element holds the byte 0xFF.
class LaidOutTensor {
 public:
  LaidOutTensor(const TensorView& source, const Layout& layout);

  const TensorView& view() const { return view_; }
  /// True when bytes outside the elements have changed, or with `with_elements` any bytes.
  bool has_changed(bool with_elements) const;

 private:
  std::shared_ptr<GuardedMemory> memory_;
  TensorView view_;
  std::vector<char> before_;
};

/// A copy of a call, inputs and outputs laid out as `layout_of` says for each tensor's name.
class LaidOutCall {
 public:
  using LayoutOf = std::function<Layout(std::string_view name, const TensorView& tensor)>;
  LaidOutCall(const OpCall& source, const LayoutOf& layout_of);

  const OpCall& call() const { return call_; }
  /// Names of inputs that have changed, and of outputs around which bytes have; empty: none.
  std::string damage() const;

 private:
  OpCall call_;
  std::vector<std::pair<std::string, LaidOutTensor>> tensors_;
};

/// Outputs of two calls of one op that differ in any bit; empty when none do.
std::string differing_outputs(const OpCall& a, const OpCall& b);

}  // namespace flashtile::test
