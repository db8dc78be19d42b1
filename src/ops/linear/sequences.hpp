// SPDX-License-Identifier: Apache-2.0
//
// Where the rows of a sequence lie, dense or packed; the reference and the kernels read and write
// through this alone.
#pragma once

#include <span>
#include <vector>

#include "core/element.hpp"
#include "core/kept_list.hpp"
#include "ops/linear/problem.hpp"

namespace flashtile {

struct LinearSequence {
  int64_t batch_idx = 0;
  int64_t begin = 0;  ///< packed: its first row; else 0
  int64_t length = 0;
  int64_t state_idx = 0;  ///< of its line in the states
};

/// The line of the states that sequence b has: b, or its slot in the pool of a step.
int64_t state_line(const LinearArgs& args, int64_t b);

/// All sequences, in order. Reads cu_seqlens (host memory, already checked).
KeptList<LinearSequence> linear_sequences(const LinearProblem& problem, const LinearArgs& args);

/// What one head of one sequence has of a tensor: element (t, i) of rows at a constant distance.
/// Strides in bytes. A tensor that is not there has `data` null and reads as 0.
struct HeadRows {
  char* data = nullptr;
  int64_t row_stride = 0;
  int64_t element_stride = 0;
  DType dtype = DType::kNone;

  explicit operator bool() const { return data != nullptr; }
  char* row(int64_t t) const { return data + t * row_stride; }
  double load(int64_t t, int64_t i = 0) const {
    return data == nullptr ? 0 : load_float(row(t) + i * element_stride, dtype);
  }
  void store(int64_t t, int64_t i, double value) const {
    if (data != nullptr) store_float(row(t) + i * element_stride, dtype, value);
  }
};

/// Of (batch, seqlen, heads, ...) or (total, heads, ...), with one dimension or none behind heads.
HeadRows timed_rows(const LinearProblem& problem, const TensorView& tensor,
                    const LinearSequence& sequence, int64_t head);

/// The elements of one head of a state (sequences, heads, ...), in row-major order. Absent: zeros.
std::vector<double> load_state(const TensorView& tensor, int64_t batch_idx, int64_t head,
                               int64_t size);
/// Nothing for an absent tensor.
void load_state(const TensorView& tensor, int64_t batch_idx, int64_t head,
                std::span<double> values);
void store_state(const TensorView& tensor, int64_t batch_idx, int64_t head,
                 std::span<const double> values);

/// Element (head) or (head, i) of a parameter, where i counts all dimensions behind the first in
/// row-major order; a (heads) tensor has the same number for every i.
char* parameter_at(const TensorView& tensor, int64_t head, int64_t i);
double load_parameter(const TensorView& tensor, int64_t head, int64_t i = 0);

}  // namespace flashtile
