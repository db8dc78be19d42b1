// SPDX-License-Identifier: Apache-2.0
//
// How a launch of a layer part goes through the rows and columns of its tensors.
#pragma once

#include "cpu/layer_part_call.hpp"

namespace flashtile::cpu {

/// Rows and columns of a chunk; a head whose elements mix is not cut.
inline constexpr int64_t kLayerPartRows = 32;
inline constexpr int64_t kLayerPartColumns = 128;

/// Sizes that a problem gives.
struct PartSizes {
  LinearFamily part;
  int64_t head_dim, num_columns;
  int64_t ld;           ///< of scratch and states
  int64_t rows_in_one;  ///< that are taken as one where a row has few columns
  int64_t num_parameters, parameter_ld;
  bool has_sums;

  explicit PartSizes(const LinearProblem& problem);
  int64_t parameter_numbers() const { return num_parameters * parameter_ld; }
};

/// `in_one` rows at a time, `count` times.
struct RowBlock {
  LinearSequence sequence;
  int64_t begin;
  int64_t count;
  int64_t in_one;
};

/// Columns [first, first + count) of a head; of all heads side by side where they are taken so.
struct ColumnBlock {
  int64_t head;
  int64_t first;
  int64_t count;
};

/// Blocks of rows and of columns, from strides where these do not decide an order of sums.
class PartLayout {
 public:
  PartLayout(const LinearProblem& problem, const LinearArgs& args);

  const PartSizes& sizes() const { return sizes_; }
  const KeptList<RowBlock>& rows() const { return rows_; }
  const KeptList<ColumnBlock>& columns() const { return columns_; }
  int64_t rows_in_one() const { return rows_in_one_; }

  /// A block of a tensor of rows.
  ChunkRows rows_of(const TensorView& tensor, const RowBlock& block,
                    const ColumnBlock& columns) const;

  /// Where the parameter of column n is for row `row` of those that are taken as one: columns that
  /// lie side by side do so for each row.
  int64_t parameter_index(int64_t n, int64_t row) const {
    return (n / dim_ * rows_in_one_ + row) * dim_ + n % dim_;
  }

 private:
  bool mixes_elements() const;
  bool is_one_row(const TensorView& tensor) const;
  bool is_one_column(const TensorView& tensor) const;
  bool have_heads_as_rows() const;
  void list_columns();
  void list_rows();
  int time() const { return problem_.is_packed ? 0 : 1; }  ///< dimension of rows

  const LinearProblem problem_;
  const LinearArgs& args_;
  PartSizes sizes_;
  bool heads_are_rows_;  ///< each head's rows are rows of one head
  int64_t rows_in_one_;
  int64_t dim_ = 0;  ///< columns that lie side by side: of a head, or of all
  KeptList<RowBlock> rows_;
  KeptList<ColumnBlock> columns_;
};

}  // namespace flashtile::cpu
