// SPDX-License-Identifier: Apache-2.0
//
// What one instruction set offers to the launcher of sLSTM. Formulas are in slstm.hpp.
#pragma once

#include "cpu/kernels/chunk_rows.hpp"

namespace flashtile::cpu {

inline constexpr int64_t kSlstmGates = 4;  ///< i, f, z, o

/// Some rows of one head of one sequence. A state is the rows c, n, m, h, of `ld` floats each.
struct SlstmChunk {
  int64_t rows;
  int64_t max_rows;  ///< that the scratch was made for
  int64_t dim;
  int64_t ld;
  ChunkRows gates[kSlstmGates];
  ChunkRows out;           ///< no data: only the state goes on
  const float* by_hidden;  ///< for each gate R transposed, `ld` floats a row
  const float* by_gate;    ///< for each gate R, likewise; of a backward
  float* state;            ///< a backward leaves it as it is
  ChunkRows dout;
  ChunkRows dgates[kSlstmGates];
  float* dstate;   ///< of c, n and h
  float* dweight;  ///< as by_gate; added to
  char* scratch;
};

/// A backward runs forward first, with `fwd_chunk`, and then back with the state before each chunk.
struct SlstmKernels {
  int64_t (*ld)(int64_t dim);
  int64_t (*scratch_bytes)(int64_t max_rows, int64_t dim);
  /// R of one gate, dim rows, in both forms; by_gate may be null.
  void (*pack_weight)(const ChunkRows& weight, int64_t dim, float* by_hidden, float* by_gate);
  void (*fwd_chunk)(const SlstmChunk& chunk);
  void (*bwd_chunk)(const SlstmChunk& chunk);
};

}  // namespace flashtile::cpu
