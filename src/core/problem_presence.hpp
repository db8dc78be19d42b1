// SPDX-License-Identifier: Apache-2.0
//
// Which tensors a problem text has: those that it names, required ones, and gradients of what is
// there.
#pragma once

#include <string>
#include <vector>

#include "core/problem_text.hpp"

namespace flashtile {

/// True for i32 and i64, the dtypes of tensors whose values a problem text may write out.
inline bool has_text_values(DType dtype) { return dtype == DType::kI32 || dtype == DType::kI64; }

/// A tensor that a problem has: its row, and what the text says about it.
struct PresentTensor {
  const TensorSpec* row = nullptr;
  std::string suffix;                ///< for family rows
  const TensorItem* item = nullptr;  ///< null: the text says nothing

  std::string name() const {
    return row->is_family() ? family_name(row->name, suffix) : std::string(row->name);
  }
};

/// The tensors of a problem and their dtypes. Refers to the problem, which must stay as it is.
class Presence {
 public:
  explicit Presence(const ProblemText& problem);

  /// Gradients stand behind all others.
  const std::vector<PresentTensor>& tensors() const { return tensors_; }
  /// The tensor of that row, where * stands for `suffix`; null when the problem has none.
  const PresentTensor* find(std::string_view row_name, std::string_view suffix = {}) const;
  DType dtype_of(const PresentTensor& tensor) const;

 private:
  DType default_dtype(const PresentTensor& tensor, int depth) const;
  void add_row(const TensorSpec& row);
  void add_family(const TensorSpec& row);
  bool has_floating_input(const TensorSpec& row, std::string_view suffix) const;

  const ProblemText& problem_;
  std::vector<PresentTensor> tensors_;
};

}  // namespace flashtile
