// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/sequences.hpp"

namespace flashtile {

/// Calls body(flat, address) for each element of a tensor, the last dimension fastest.
template <class Body>
void for_each_element(const TensorView& tensor, const Body& body) {
  if (!tensor) return;
  const int64_t count = tensor.numel();
  std::array<int64_t, TensorView::kMaxDims> index{};
  int64_t offset = 0;
  const int64_t bytes = dtype_bytes(tensor.dtype);
  for (int64_t flat = 0; flat < count; ++flat) {
    body(flat, static_cast<char*>(tensor.data) + offset * bytes);
    for (int d = tensor.ndim - 1; d >= 0; --d) {
      const auto dim = static_cast<size_t>(d);
      offset += tensor.strides[dim];
      if (++index[dim] < tensor.shape[dim]) break;
      offset -= index[dim] * tensor.strides[dim];
      index[dim] = 0;
    }
  }
}

/// Every element 0.
void fill_zero(const TensorView& tensor);

/// Rows of packed results that no sequence covers: out 0, lse -inf.
void fill_uncovered_rows(const AttentionProblem& problem, const AttentionArgs& args);

/// The debug outputs that do not depend on scores: zero weights where no tile comes, and the whole
/// dropout mask.
void fill_debug_outputs(const AttentionProblem& problem, const AttentionArgs& args,
                        std::span<const Sequence> sequences);

}  // namespace flashtile
