// SPDX-License-Identifier: Apache-2.0
//
// Tensors that the command line tool owns, and their elements as numbers.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "core/op_spec.hpp"
#include "flashtile/tensor.hpp"

namespace flashtile::cli {

/// Memory for tensors of a call. Copies share it.
class TensorPool {
 public:
  /// A contiguous tensor, not initialised. Throws Error where the memory is not there.
  TensorView make(DType dtype, std::span<const int64_t> shape);
  /// The same shape, contiguous, of another dtype; values are converted (rounded once).
  TensorView convert(const TensorView& source, DType dtype);
  /// Keeps memory that a file or another pool owns.
  void keep(std::shared_ptr<const std::byte> owner) { storage_.push_back(std::move(owner)); }

 private:
  std::vector<std::shared_ptr<const std::byte>> storage_;
};

/// The sizes of a tensor's dimensions.
std::vector<int64_t> shape_of(const TensorView& tensor);

/// All elements in row-major order. Integers and bools become numbers.
std::vector<double> to_numbers(const TensorView& tensor);

/// Writes numbers in row-major order, rounded once to the tensor's dtype.
void from_numbers(std::span<const double> numbers, const TensorView& tensor);

/// Fills with what no result is: NaN, or the byte 0xA5 for integers.
void poison(const TensorView& tensor);

/// The number that an element of the tensor is; `offset` counts elements from its start.
double number_at(const TensorView& tensor, int64_t offset);

/// Bytes of all tensors that a call is given.
int64_t call_bytes(const OpCall& call);

}  // namespace flashtile::cli
