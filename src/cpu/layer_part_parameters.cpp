// SPDX-License-Identifier: Apache-2.0
#include "cpu/layer_part_parameters.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace flashtile::cpu {
namespace {

/// Element i of every head, or of head 0 alone where parameters have no heads.
void load_row(const TensorView& tensor, int64_t i, float* to, int64_t step) {
  if (!tensor) return;
  const int64_t stride = tensor.strides[0] * dtype_bytes(tensor.dtype);
  const char* at = parameter_at(tensor, 0, i);
  for (int64_t n = 0; n < tensor.shape[0]; ++n) {
    to[n * step] = static_cast<float>(load_float(at + n * stride, tensor.dtype));
  }
}

void store_sum(const TensorView& gradient, int64_t head, int64_t i, double sum) {
  if (gradient) store_float(parameter_at(gradient, head, i), gradient.dtype, sum);
}

/// As kernels take it: where rates are large its logarithm, else itself. Times 0 it has to be 0.
float rate_of(double A_log, bool is_large) {
  if (is_large) return static_cast<float>(A_log);
  return static_cast<float>(std::min<double>(std::exp(A_log), std::numeric_limits<float>::max()));
}

}  // namespace

bool has_large_rate(const LinearArgs& args) {
  const TensorView& A_log = args.inputs.A_log;
  if (!A_log || args.lower_bound.has_value()) return false;
  for (int64_t head = 0; head < A_log.shape[0]; ++head) {
    if (load_parameter(A_log, head) > 16) return true;
  }
  return false;
}

/// Brings a row of parameters, one for each column, to their places for all rows.
void PartParameters::spread(float* row) const {
  for (int64_t n = sizes_.num_columns - 1; layout_.rows_in_one() > 1 && n >= 0; --n) {
    const float value = row[n];
    for (int64_t r = 0; r < layout_.rows_in_one(); ++r) row[layout_.parameter_index(n, r)] = value;
  }
}

void PartParameters::load() const {
  float* const rows = shared_.parameters;
  const LinearTensors& in = args_.inputs;
  std::fill_n(rows, sizes_.parameter_numbers(), 0.0f);
  if (sizes_.part == LinearFamily::kShortConv) {
    for (int64_t p = 0; p <= problem_.num_past; ++p) {
      load_row(in.weight, p, rows + p * sizes_.parameter_ld, 1);
    }
    load_row(in.bias, 0, rows + (problem_.num_past + 1) * sizes_.parameter_ld, 1);
  } else if (sizes_.part == LinearFamily::kGatedNorm) {
    if (!in.weight) std::fill_n(rows, sizes_.head_dim, 1.0f);
    load_row(in.weight, 0, rows, 1);
  } else if (sizes_.part == LinearFamily::kLogDecayGate) {
    float* const rates = rows + sizes_.parameter_ld;
    for (int64_t i = 0; i < sizes_.head_dim; ++i) {
      load_row(in.bias, i, rows + i, sizes_.head_dim);
    }
    const bool is_large = has_large_rate(args_);
    for (int64_t n = 0; n < sizes_.num_columns; ++n) {
      rates[n] = in.A_log ? rate_of(load_parameter(in.A_log, n / sizes_.head_dim), is_large) : 1.0f;
    }
    spread(rows);
    spread(rates);
  }
}

/// Of element n of row `row` of the parameters, over all tasks.
double PartParameters::sum_of(int64_t row, int64_t n) const {
  double sum = 0;
  for (int64_t task = 0; task < num_tasks_; ++task) {
    const double* sums = sums_of(task) + row * sizes_.parameter_ld;
    for (int64_t r = 0; r < layout_.rows_in_one(); ++r) sum += sums[layout_.parameter_index(n, r)];
  }
  return sum;
}

void PartParameters::store_sums() const {
  const LinearTensors& gradients = args_.gradients;
  if (sizes_.part == LinearFamily::kShortConv) {
    for (int64_t n = 0; n < sizes_.num_columns; ++n) {
      for (int64_t p = 0; p <= problem_.num_past; ++p) {
        store_sum(gradients.weight, n, p, sum_of(p, n));
      }
      store_sum(gradients.bias, n, 0, sum_of(problem_.num_past + 1, n));
    }
  } else if (sizes_.part == LinearFamily::kGatedNorm) {
    for (int64_t i = 0; i < sizes_.head_dim; ++i) store_sum(gradients.weight, i, 0, sum_of(0, i));
  } else if (sizes_.part == LinearFamily::kLogDecayGate) {
    for (int64_t head = 0; head < problem_.num_state_heads; ++head) {
      double dA_log = 0;
      for (int64_t i = 0; i < sizes_.head_dim; ++i) {
        const int64_t n = head * sizes_.head_dim + i;
        store_sum(gradients.bias, head, i, sum_of(0, n));
        dA_log += sum_of(1, n);
      }
      store_sum(gradients.A_log, head, 0, dA_log);
    }
  }
}

}  // namespace flashtile::cpu
