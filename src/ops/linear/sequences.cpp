// SPDX-License-Identifier: Apache-2.0
#include "ops/linear/sequences.hpp"

namespace flashtile {
namespace {

int64_t stride_bytes(const TensorView& tensor, int dim) {
  return tensor.strides[static_cast<size_t>(dim)] * dtype_bytes(tensor.dtype);
}

/// Calls visit(address, i) for element i of a head of a state, in row-major order.
template <class Visit>
void for_each_of_state(const TensorView& tensor, int64_t batch_idx, int64_t head,
                       const Visit& visit) {
  const int64_t rows = tensor.ndim > 2 ? tensor.shape[2] : 1;
  const int64_t cols = tensor.ndim > 3 ? tensor.shape[3] : 1;
  const int64_t row_stride = tensor.ndim > 2 ? stride_bytes(tensor, 2) : 0;
  const int64_t col_stride = tensor.ndim > 3 ? stride_bytes(tensor, 3) : 0;
  char* data = static_cast<char*>(tensor.data) + batch_idx * stride_bytes(tensor, 0) +
               head * stride_bytes(tensor, 1);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      visit(data + r * row_stride + c * col_stride, static_cast<size_t>(r * cols + c));
    }
  }
}

}  // namespace

int64_t state_line(const LinearArgs& args, int64_t b) {
  return args.state_slots ? *reinterpret_cast<const int32_t*>(args.state_slots.at({b})) : b;
}

KeptList<LinearSequence> linear_sequences(const LinearProblem& problem, const LinearArgs& args) {
  KeptList<LinearSequence> sequences;
  for (int64_t b = 0; b < problem.batch_size; ++b) {
    LinearSequence sequence{b, 0, problem.max_seqlen, state_line(args, b)};
    if (problem.is_packed) {
      sequence.begin = *reinterpret_cast<const int32_t*>(args.cu_seqlens.at({b}));
      sequence.length =
          *reinterpret_cast<const int32_t*>(args.cu_seqlens.at({b + 1})) - sequence.begin;
    }
    sequences.push_back(sequence);
  }
  return sequences;
}

HeadRows timed_rows(const LinearProblem& problem, const TensorView& tensor,
                    const LinearSequence& sequence, int64_t head) {
  HeadRows rows;
  if (!tensor) return rows;
  const int time = problem.is_packed ? 0 : 1;
  rows.dtype = tensor.dtype;
  rows.row_stride = stride_bytes(tensor, time);
  rows.element_stride = tensor.ndim > time + 2 ? stride_bytes(tensor, time + 2) : 0;
  const int64_t first = problem.is_packed ? sequence.begin : sequence.batch_idx;
  rows.data = static_cast<char*>(tensor.data) + first * stride_bytes(tensor, 0) +
              head * stride_bytes(tensor, time + 1);
  return rows;
}

std::vector<double> load_state(const TensorView& tensor, int64_t batch_idx, int64_t head,
                               int64_t size) {
  std::vector<double> values(static_cast<size_t>(size), 0.0);
  load_state(tensor, batch_idx, head, values);
  return values;
}

void load_state(const TensorView& tensor, int64_t batch_idx, int64_t head,
                std::span<double> values) {
  if (!tensor) return;
  for_each_of_state(tensor, batch_idx, head, [&](const char* address, size_t i) {
    values[i] = load_float(address, tensor.dtype);
  });
}

void store_state(const TensorView& tensor, int64_t batch_idx, int64_t head,
                 std::span<const double> values) {
  if (!tensor) return;
  for_each_of_state(tensor, batch_idx, head, [&](char* address, size_t i) {
    store_float(address, tensor.dtype, values[i]);
  });
}

char* parameter_at(const TensorView& tensor, int64_t head, int64_t i) {
  char* address = static_cast<char*>(tensor.data) + head * stride_bytes(tensor, 0);
  for (int d = tensor.ndim - 1; d > 0; --d) {
    const int64_t size = tensor.shape[static_cast<size_t>(d)];
    address += i % size * stride_bytes(tensor, d);
    i /= size;
  }
  return address;
}

double load_parameter(const TensorView& tensor, int64_t head, int64_t i) {
  return load_float(parameter_at(tensor, head, i), tensor.dtype);
}

}  // namespace flashtile
