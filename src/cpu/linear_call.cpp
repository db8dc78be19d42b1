// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear_call.hpp"

#include <algorithm>
#include <cstring>

#include "cpu/cpu_info.hpp"

namespace flashtile::cpu {
namespace {

/// exp of less than this is 0 in float32 whatever it is multiplied by: such a decay is a reset.
constexpr double kResetDecay = -200;
constexpr double kLog2OfE = 1.44269504088896340736;
/// More than a vector of any instruction set: kernels read whole vectors.
constexpr int64_t kVectorRoom = 16;

size_t with_vector_room(int64_t rows) { return static_cast<size_t>(rows + kVectorRoom); }

/// Element (row, col) of a head of a state; strides in bytes.
struct StateElements {
  char* data;
  int64_t row_stride;
  int64_t col_stride;
  DType dtype;

  StateElements(const TensorView& tensor, int64_t batch_idx, int64_t head)
      : data(static_cast<char*>(tensor.data)), dtype(tensor.dtype) {
    const int64_t size = dtype_bytes(tensor.dtype);
    const auto stride = [&](size_t d) { return tensor.strides[d] * size; };
    data += batch_idx * stride(0) + head * stride(1);
    row_stride = stride(2);
    col_stride = tensor.ndim > 3 ? stride(3) : 0;
  }
  bool has_float_rows() const { return dtype == DType::kF32 && col_stride == 4; }
  char* at(int64_t row, int64_t col) const { return data + row * row_stride + col * col_stride; }
};

void load_matrix(const TensorView& tensor, int64_t batch_idx, int64_t head, int64_t rows,
                 int64_t cols, int64_t ld, float* to) {
  if (!tensor) return;
  const StateElements from(tensor, batch_idx, head);
  for (int64_t r = 0; r < rows; ++r) {
    if (from.has_float_rows()) {
      std::memcpy(to + r * ld, from.at(r, 0), static_cast<size_t>(cols) * sizeof(float));
      continue;
    }
    for (int64_t c = 0; c < cols; ++c) {
      to[r * ld + c] = static_cast<float>(load_float(from.at(r, c), from.dtype));
    }
  }
}

void store_matrix(const TensorView& tensor, int64_t batch_idx, int64_t head, int64_t rows,
                  int64_t cols, int64_t ld, const float* from) {
  if (!tensor) return;
  const StateElements to(tensor, batch_idx, head);
  for (int64_t r = 0; r < rows; ++r) {
    if (to.has_float_rows()) {
      std::memcpy(to.at(r, 0), from + r * ld, static_cast<size_t>(cols) * sizeof(float));
      continue;
    }
    for (int64_t c = 0; c < cols; ++c) store_float(to.at(r, c), to.dtype, from[r * ld + c]);
  }
}

}  // namespace

int64_t chunk_rows_of(const LinearProblem& problem) {
  const int64_t state_bytes = problem.head_dim * problem.head_dim_v * 4;
  int64_t rows = state_bytes * 2 > cpu_info().l2_bytes ? kLongChunkRows : kChunkRows;
  // The delta rule has more products within a chunk.
  const bool is_delta = problem.op->update == LinearUpdate::kDelta;
  if (is_delta && problem.pass == LinearPass::kForward && state_bytes <= kSmallStateBytes) {
    rows = kShortChunkRows;
  }
  return std::clamp<int64_t>(problem.max_seqlen, 1, rows);
}

ChunkRows chunk_rows(const HeadRows& rows, int64_t begin) {
  if (!rows) return {nullptr, 0, 1, DType::kF32};
  const int64_t size = dtype_bytes(rows.dtype);
  return {rows.row(begin), rows.row_stride, rows.element_stride / size, rows.dtype};
}

void load_state_rows(const LinearProblem& problem, const LinearStates& states, int64_t batch_idx,
                     int64_t head, bool has_norm, int64_t ld, float* state) {
  std::fill_n(state, problem.head_dim * ld, 0.0f);
  load_matrix(states.state, batch_idx, head, problem.head_dim, problem.head_dim_v, ld, state);
  if (!has_norm) return;
  load_matrix(states.norm, batch_idx, head, problem.head_dim, 1, ld, state + problem.head_dim_v);
}

void store_state_rows(const LinearProblem& problem, const LinearStates& states, int64_t batch_idx,
                      int64_t head, bool has_norm, int64_t ld, const float* state) {
  store_matrix(states.state, batch_idx, head, problem.head_dim, problem.head_dim_v, ld, state);
  if (!has_norm) return;
  store_matrix(states.norm, batch_idx, head, problem.head_dim, 1, ld, state + problem.head_dim_v);
}

void load_state_columns(const TensorView& tensor, int64_t batch_idx, int64_t head, int64_t first,
                        int64_t count, int64_t ld, float* state) {
  if (!tensor) return;
  load_matrix(tensor.sliced(3, first, first + count), batch_idx, head, tensor.shape[2], count, ld,
              state);
}

void store_state_columns(const TensorView& tensor, int64_t batch_idx, int64_t head, int64_t first,
                         int64_t count, int64_t ld, const float* state) {
  if (!tensor) return;
  store_matrix(tensor.sliced(3, first, first + count), batch_idx, head, tensor.shape[2], count, ld,
               state);
}

void load_state_vector(const TensorView& tensor, int64_t batch_idx, int64_t head, int64_t step,
                       float* state) {
  if (tensor) load_matrix(tensor, batch_idx, head, tensor.shape[2], 1, step, state);
}

void store_state_vector(const TensorView& tensor, int64_t batch_idx, int64_t head, int64_t step,
                        const float* state) {
  if (tensor) store_matrix(tensor, batch_idx, head, tensor.shape[2], 1, step, state);
}

ChunkGateRows::ChunkGateRows(int64_t max_rows)
    : high_(with_vector_room(max_rows)),
      low_(with_vector_room(max_rows)),
      weight_(with_vector_room(max_rows)),
      floor_(with_vector_room(max_rows)),
      first_(with_vector_room(max_rows)) {}

ChunkGates ChunkGateRows::of(const ScalarGates& gates, bool has_weight, int64_t begin,
                             int64_t rows) {
  const double* log_decay = gates.log_decay.data() + begin;
  bool has_decay = false;
  int32_t first = -1;
  double sum = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const auto n = static_cast<size_t>(i);
    has_decay = has_decay || log_decay[i] != 0;
    if (log_decay[i] < kResetDecay) {
      sum = 0;
      first = static_cast<int32_t>(i);
    } else {
      sum += log_decay[i] * kLog2OfE;
    }
    first_[n] = first;
    high_[n] = static_cast<float>(sum);
    low_[n] = static_cast<float>(sum - static_cast<double>(high_[n]));
    if (has_weight) weight_[n] = static_cast<float>(gates.weight[static_cast<size_t>(begin) + n]);
  }
  const bool has_floor = !gates.floor.empty();
  for (int64_t i = 0; i < rows && has_floor; ++i) {
    floor_[static_cast<size_t>(i)] =
        static_cast<float>(gates.floor[static_cast<size_t>(begin + i)]);
  }
  return {high_.data(),
          low_.data(),
          first_.data(),
          has_weight ? weight_.data() : nullptr,
          has_floor ? floor_.data() : nullptr,
          has_decay};
}

}  // namespace flashtile::cpu
