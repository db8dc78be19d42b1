// SPDX-License-Identifier: Apache-2.0
//
// What one instruction set offers to the launcher of what layers have around their recurrence.
// Formulas are in layer_parts.hpp and short_conv.hpp.
#pragma once

#include "cpu/kernels/chunk_rows.hpp"

namespace flashtile::cpu {

enum class FeatureMap : uint8_t { kElu, kRelu, kReluSquared, kSoftmax };

/// The same for all chunks of a call.
struct LayerPartOptions {
  int64_t num_past;  ///< of short_conv
  bool has_silu, has_residual;
  FeatureMap map;
  bool has_rate, has_lower_bound;  ///< of log_decay_gate
  bool is_rate_large;              ///< its rates are given as logarithms, for some are large
  float lower_bound;
  float factor;                              ///< 1 / divisor
  bool has_gate, is_gate_first, is_sigmoid;  ///< of gated_norm
  float eps;
};

/// Some rows of some columns: any of them where elements do not mix, else those of one head. A row
/// may be several ones of the tensors, side by side: these have columns / rows_in_one elements.
struct LayerPartChunk {
  const LayerPartOptions* options;
  int64_t rows;
  int64_t columns;
  int64_t rows_in_one;
  int64_t max_rows;  ///< that the scratch was made for, rows of `ld` floats
  int64_t ld;
  ChunkRows x, z, out;
  ChunkRows dout, dx, dz;
  /// Rows of parameter_ld numbers, with room for whole vectors behind the last column. short_conv:
  /// weights, oldest row first, then the bias; log_decay_gate: bias, rate or its logarithm;
  /// gated_norm: weight.
  const float* parameters;
  double* dparameters;  ///< added to
  int64_t parameter_ld;

  // Of short_conv alone. Rows of states are inputs, oldest first, ld floats each.
  int64_t rows_before;  ///< rows of x that there are before these, at most num_past
  int64_t rows_after;   ///< likewise behind
  bool is_first;        ///< of the sequence
  const float* past;    ///< before the sequence
  float* final_past;    ///< behind it; null: not wanted, or not the last chunk
  float* dpast;         ///< of the first chunk
  const float* dfinal;  ///< null: zero

  char* scratch;
};

struct LayerPartKernels {
  int64_t (*scratch_bytes)(int64_t max_rows, int64_t ld, int64_t num_past);
  void (*fwd_chunk)(const LayerPartChunk& chunk);
  void (*bwd_chunk)(const LayerPartChunk& chunk);
};

}  // namespace flashtile::cpu
