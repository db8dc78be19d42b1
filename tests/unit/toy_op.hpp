// SPDX-License-Identifier: Apache-2.0
//
// A second operator that shares nothing with attention but the table. It shows what a new op gets
// from its table alone: validation, problem texts, the C face, the CLI and golden files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/op_spec.hpp"

namespace flashtile::toy {

struct NamedTensor {
  std::string name;
  TensorView tensor;
  TensorView gradient;
};

struct NamedNumber {
  std::string name;
  double value = 0;
};

/// scale_rows: y = x factor[row] + bias + shift + sum of tables and extras, applied `repeat` times,
/// then negated where asked; rows beyond `num_used[batch]` are 0. dfactor, dx, dtable.*: gradients
/// of sum y dy for repeat = 1.
struct ScaleRowsArgs {
  TensorView x;         ///< (batch_size, num_rows, num_cols)
  TensorView factor;    ///< (num_rows) or (batch_size, num_rows), f32
  TensorView bias;      ///< (batch_size | 1, num_cols)
  TensorView num_used;  ///< (batch_size), i32
  TensorView dy;        ///< like x
  TensorView y;         ///< like x; dtype of x, or f32
  TensorView dx;
  TensorView dfactor;
  std::vector<NamedTensor> tables;  ///< "table.NAME": any shape, f32 or i32; their sums are added
  std::vector<NamedNumber> extras;  ///< "extra.NAME"
  double shift = 0;
  std::optional<double> limit;  ///< > 0: |y| is clamped to it
  int64_t repeat = 1;
  uint64_t seed = 0;  ///< 1 is added for odd ones
  bool negate = false;
  std::string form;  ///< "square": x is squared first
};

/// The table of scale_rows.
const OpSpec& scale_rows_spec();

/// Registers scale_rows once for the process.
void register_scale_rows();

}  // namespace flashtile::toy
