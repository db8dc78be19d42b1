// SPDX-License-Identifier: Apache-2.0
//
// The shape column of the operator table: parsing it, and finding sizes from tensors with it.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/op_spec.hpp"

namespace flashtile {

/// One dimension as a row writes it.
struct ShapeEntry {
  std::string_view name;     ///< of a DimSpec; empty for a plain number
  int64_t number = 0;        ///< the plain number
  bool is_plus_one = false;  ///< NAME+1
  bool may_be_one = false;   ///< NAME?
};

/// One alternative of a shape column.
struct ShapeForm {
  std::array<ShapeEntry, TensorView::kMaxDims> entries{};
  int32_t ndim = 0;
  std::string_view condition;  ///< the tensor behind @, or empty

  std::span<const ShapeEntry> dims() const { return {entries.data(), static_cast<size_t>(ndim)}; }
};

/// "(batch_size + 1)", "(batch_size or 1, seqlen_k)".
std::string to_string(const ShapeForm& form);

/// All alternatives of a shape column. Throws Error(kInternal) for a column that cannot be read.
std::vector<ShapeForm> parse_shape(std::string_view shape);

/// The alternatives that count: the first one whose condition holds, and those directly behind it
/// with the same condition (other numbers of dimensions). Empty: any shape is right. A column is
/// parsed once on each thread; what is returned lives as long as the thread.
std::span<const ShapeForm> shape_forms(std::string_view shape,
                                       const std::function<bool(std::string_view)>& is_given);

/// A tensor of a call, with its row.
struct GivenTensor {
  const TensorSpec* row = nullptr;
  std::string suffix;  ///< for family rows
  TensorView view;

  std::string name() const {
    return row->is_family() ? family_name(row->name, suffix) : std::string(row->name);
  }
};

/// The tensors that are given, in table order.
std::vector<GivenTensor> given_tensors(const OpSpec& spec, const void* args);

/// The given tensor of that name, where * stands for `suffix`; null when it is not given.
const GivenTensor* find_given(std::span<const GivenTensor> tensors, std::string_view row_name,
                              std::string_view suffix = {});

/// Adds the sizes that the tensors fix to `sizes`. Returns the first thing that is wrong with a
/// shape, such as "head_dim of k is 96, of q 128"; empty when all agree. Goes on after a fault.
std::string bind_sizes(std::span<const GivenTensor> tensors, Sizes& sizes);
/// The same where the tensors are only a part of those that conditions (@...) may name.
std::string bind_sizes(std::span<const GivenTensor> tensors, Sizes& sizes,
                       const std::function<bool(std::string_view)>& is_given);

}  // namespace flashtile
