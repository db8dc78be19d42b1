// SPDX-License-Identifier: Apache-2.0
//
// What one instruction set offers to the launchers of scans: recurrences of channels that do not
// mix. Formulas are in scan.hpp and selective_scan.hpp.
#pragma once

#include "cpu/kernels/chunk_rows.hpp"

namespace flashtile::cpu {

/// Channels that are worked on together: the distance of rows of states and parameters.
inline constexpr int64_t kScanChannels = 64;

/// Some rows of a block of channels. Rows of channels have a column for each; rows of groups, which
/// mamba1 has, one for each element of a channel's state.
struct ScanChunk {
  int64_t rows;
  int64_t max_rows;  ///< that the scratch was made for
  int64_t channels;  ///< at most kScanChannels
  int64_t head_dim;  ///< elements of a channel's state: of mamba1
  bool has_softplus;
  bool is_first;  ///< sums of dB and dC begin with this block
  ChunkRows k, v, g, dt, z;
  ChunkRows B, C;
  const float* parameters;  ///< rows of kScanChannels: mamba1 D, dt_bias, A; rwkv4 w, u
  float* state;             ///< rows of kScanChannels
  ChunkRows out;            ///< no data: only the state goes on
  ChunkRows dout, dk, dv, dg, ddt, dz;
  float* dstate;
  float* dB;  ///< head_dim floats for each row, summed over blocks
  float* dC;
  double* dparameters;  ///< as parameters; added to
  char* scratch;
};

/// One recurrence. A backward runs forward first, with `fwd_chunk`, and then back with the state
/// before each chunk.
struct ScanKernels {
  int64_t (*fwd_scratch_bytes)(int64_t max_rows, int64_t head_dim);
  void (*fwd_chunk)(const ScanChunk& chunk);
  int64_t (*bwd_scratch_bytes)(int64_t max_rows, int64_t head_dim);
  void (*bwd_chunk)(const ScanChunk& chunk);
};

}  // namespace flashtile::cpu
