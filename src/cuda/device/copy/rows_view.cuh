// SPDX-License-Identifier: Apache-2.0
//
// Rows of one sequence at a constant distance, of all its heads.
#pragma once

#include "cuda/device/copy/load_tile.cuh"
#include "cuda/device/copy/rows.cuh"

namespace flashtile::device {

struct RowsView {
  char* data;  ///< of row 0 of head 0, or of the only head
  int64 row_stride;
  int64 head_stride;
  int64 element_stride;
  int num_rows;
  int num_cols;

  /// Queries, or what is laid out like them.
  FLASHTILE_DEVICE static RowsView queries(const RowsParam& rows, const Sequence& sequence,
                                           int num_cols) {
    return {query_row(rows, sequence, 0, 0),
            rows.row_stride,
            rows.head_stride,
            rows.element_stride,
            sequence.seqlen_q,
            num_cols};
  }
  /// Keys of one head, or what is laid out like them.
  FLASHTILE_DEVICE static RowsView keys(const RowsParam& rows, const Sequence& sequence,
                                        int head_kv, int num_cols) {
    char* data = rows.data + sequence.line * rows.batch_stride + head_kv * rows.head_stride +
                 (sequence.k_begin + sequence.leftpad) * rows.row_stride;
    return {data, rows.row_stride, 0, rows.element_stride, sequence.seqlen_k, num_cols};
  }

  FLASHTILE_DEVICE char* row(int head, int index) const {
    return data + head * head_stride + index * row_stride;
  }
};

/// Starts copying rows [first_row, ...) and columns [first_col, ...) into a tile; zeros for what is
/// not there.
template <class Copy>
FLASHTILE_DEVICE void load_view(uint32 tile, const RowsView& view, int head, int first_row,
                                int first_col) {
  const char* source = view.data + head * view.head_stride + first_col * view.element_stride +
                       first_row * view.row_stride;
  const int num_cols = view.num_cols - first_col;
  if (first_row >= 0 && first_row + Copy::kNumRows <= view.num_rows) {
    Copy::copy_strided(tile, num_cols, view.element_stride,
                       source + Copy::first_row() * view.row_stride, view.row_stride);
  } else {
    Copy::copy_range(tile, num_cols, view.element_stride, -first_row, view.num_rows - first_row,
                     [&](int row) { return source + row * view.row_stride; });
  }
}

}  // namespace flashtile::device
