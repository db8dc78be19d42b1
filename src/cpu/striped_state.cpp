// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cpu/recurrent_call.hpp"

namespace flashtile::cpu {

void StripedState::load_rows(const TensorView& tensor, int64_t first, int64_t count,
                             float* rows) const {
  std::fill_n(rows, problem_.head_dim * ld_v_, 0.0f);
  load_state_columns(tensor, sequence_.batch_idx, head_, first, count, ld_v_, rows + first);
}

void StripedState::load_value_strips(const TensorView& tensor, const StripRange& strips,
                                     float* rows, float* to) const {
  load_rows(tensor, strips.first * kernels_.strip_width, columns_of(strips), rows);
  kernels_.load_strips(rows, ld_v_, problem_.head_dim, problem_.head_dim_v, strips.first,
                       strips.count, to);
}

void StripedState::store_value_strips(const TensorView& tensor, const StripRange& strips,
                                      float* rows, const float* from) const {
  const int64_t first = strips.first * kernels_.strip_width;
  kernels_.store_strips(from, problem_.head_dim, problem_.head_dim_v, strips.first, strips.count,
                        rows, ld_v_);
  store_state_columns(tensor, sequence_.batch_idx, head_, first, columns_of(strips), ld_v_,
                      rows + first);
}

void StripedState::load_key_strips(const TensorView& tensor, const StripRange& strips, float* rows,
                                   float* transposed_rows, float* to) const {
  load_rows(tensor, 0, problem_.head_dim_v, rows);
  for (int64_t j = 0; j < problem_.head_dim_v; ++j) {
    for (int64_t i = 0; i < problem_.head_dim; ++i) {
      transposed_rows[j * ld_k_ + i] = rows[i * ld_v_ + j];
    }
  }
  kernels_.load_strips(transposed_rows, ld_k_, problem_.head_dim_v, problem_.head_dim, strips.first,
                       strips.count, to);
}

}  // namespace flashtile::cpu
