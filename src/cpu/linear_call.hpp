// SPDX-License-Identifier: Apache-2.0
//
// What the launchers of linear attention share: rows and states as kernels take them.
#pragma once

#include "cpu/kernels/linear_kernels.hpp"
#include "ops/linear/implementation.hpp"
#include "ops/linear/sequences.hpp"
#include "ops/scalar_decay/gates.hpp"

namespace flashtile::cpu {

/// Rows of a chunk where no cache asks for more, where a state is large, and where it is small and
/// products within the chunk are many.
inline constexpr int64_t kChunkRows = 64;
inline constexpr int64_t kLongChunkRows = 128;
inline constexpr int64_t kShortChunkRows = 32;
inline constexpr int64_t kSmallStateBytes = int64_t{64} << 10;

/// Rows of a chunk for a problem: more where a state, which each chunk reads and writes, fills the
/// second cache, and no more than the longest sequence has.
int64_t chunk_rows_of(const LinearProblem& problem);

/// Rows [begin, ...) of a head of a sequence.
ChunkRows chunk_rows(const HeadRows& rows, int64_t begin);

/// A state in the form of kernels: head_dim rows of `ld` floats, S and behind it, where `has_norm`,
/// a column n; zeros up to ld. Absent tensors are zero.
void load_state_rows(const LinearProblem& problem, const LinearStates& states, int64_t batch_idx,
                     int64_t head, bool has_norm, int64_t ld, float* state);
void store_state_rows(const LinearProblem& problem, const LinearStates& states, int64_t batch_idx,
                      int64_t head, bool has_norm, int64_t ld, const float* state);

/// Columns [first, first + count) of a head of a matrix state, in rows of `ld` floats. An absent
/// tensor leaves `state` as it is.
void load_state_columns(const TensorView& tensor, int64_t batch_idx, int64_t head, int64_t first,
                        int64_t count, int64_t ld, float* state);
void store_state_columns(const TensorView& tensor, int64_t batch_idx, int64_t head, int64_t first,
                         int64_t count, int64_t ld, const float* state);

/// Elements of a head of a vector state, `step` floats apart.
void load_state_vector(const TensorView& tensor, int64_t batch_idx, int64_t head, int64_t step,
                       float* state);
void store_state_vector(const TensorView& tensor, int64_t batch_idx, int64_t head, int64_t step,
                        const float* state);

/// The gates of one chunk of a head.
class ChunkGateRows {
 public:
  explicit ChunkGateRows(int64_t max_rows);

  /// Of rows [begin, begin + rows). Valid until the next call.
  ChunkGates of(const ScalarGates& gates, bool has_weight, int64_t begin, int64_t rows);

 private:
  KeptList<float> high_, low_, weight_, floor_;
  KeptList<int32_t> first_;
};

}  // namespace flashtile::cpu
