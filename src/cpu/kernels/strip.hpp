// SPDX-License-Identifier: Apache-2.0
#pragma once

// The interpreter of strip programs (variant/expr/program.hpp): a user's score and mask functions
// and their derivatives, 64 keys of one row at a time. Loops over lanes are plain, and the compiler
// vectorises them for the instruction set of the file that includes this; FLASHTILE_ISA is the name
// of its namespace. Nothing here may become a symbol that such files share: no functions of the
// standard library.
//
// One machine serves one thread:
//
//   StripMachine machine;
//   strip_open(machine, program, memory);          // strip_bytes(program) at a multiple of 64
//   strip_tile(machine, inputs);                   // for each (batch, head)
//   for each strip of keys:
//     strip_columns(machine, k_idx, count);        // what depends on keys only
//     for each row:
//       strip_row(machine, q_idx);                 // what depends on the row only
//       strip_run(machine, score);                 // the rest; score has kStrip floats
//       strip_floats(machine, output)[lane] ...
//
// The two loops may also be the other way round. Lanes from `count` on hold anything. An index out
// of range on a lane that does read sets machine.error to the aux tensor's number + 1; the nearest
// element is read instead.

#include <cstdint>

#include "cpu/kernels/strip_math.hpp"
#include "cpu/kernels/strip_ops.hpp"
#include "variant/expr/strip_program.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Bytes of memory that a machine for this program needs.
inline int64_t strip_bytes(const variant::StripProgram& program) {
  constexpr int64_t kSizes[3] = {sizeof(uint8_t), sizeof(int64_t), sizeof(float)};
  int64_t bytes = 0;
  for (int type = 0; type < 3; ++type) {
    bytes += program.num_strips[type] * kStrip * kSizes[type];
    bytes += (program.num_scalars[type] * kSizes[type] + 63) / 64 * 64;
  }
  return bytes;
}

/// Gives a machine its program and memory. Both have to outlive it.
inline void strip_open(StripMachine& machine, const variant::StripProgram& program, void* memory) {
  machine = StripMachine{};
  machine.program = &program;
  auto* at = static_cast<char*>(memory);
  const auto take = [&at](int64_t bytes) {
    char* const begin = at;
    at += (bytes + 63) / 64 * 64;
    return begin;
  };
  machine.strip_bools = reinterpret_cast<uint8_t*>(take(program.num_strips[0] * kStrip));
  machine.strip_ints = reinterpret_cast<int64_t*>(take(program.num_strips[1] * kStrip * 8));
  machine.strip_floats = reinterpret_cast<float*>(take(program.num_strips[2] * kStrip * 4));
  machine.scalar_bools = reinterpret_cast<uint8_t*>(take(program.num_scalars[0]));
  machine.scalar_ints = reinterpret_cast<int64_t*>(take(program.num_scalars[1] * 8));
  machine.scalar_floats = reinterpret_cast<float*>(take(program.num_scalars[2] * 4));
}

template <int N>
inline void strip_instructions(StripMachine& machine, variant::Rank rank) {
  const auto place = static_cast<int>(rank);
  const int32_t begin = place == 0 ? 0 : machine.program->ends[place - 1];
  const int32_t end = machine.program->ends[place];
  for (int32_t n = begin; n < end; ++n) {
    strip_instruction<N>(machine, machine.program->instructions[n]);
  }
}

/// Scalars for the strips to come; they have to stay.
inline void strip_tile(StripMachine& machine, const variant::StripInputs& inputs) {
  machine.inputs = &inputs;
  strip_instructions<1>(machine, variant::Rank::kTile);
}

inline void strip_row(StripMachine& machine, int64_t q_idx) {
  machine.q_idx = q_idx;
  strip_instructions<1>(machine, variant::Rank::kRow);
}

/// Keys k_idx .. k_idx + count - 1, count <= kStrip.
inline void strip_columns(StripMachine& machine, int64_t k_idx, int64_t count) {
  machine.k_idx = k_idx;
  machine.count = count;
  strip_instructions<kStrip>(machine, variant::Rank::kColumn);
}

/// `score` has kStrip floats, of which those from `count` on may be anything; null if no root reads
/// the score.
inline void strip_run(StripMachine& machine, const float* score) {
  machine.score = score;
  strip_instructions<kStrip>(machine, variant::Rank::kElement);
}

/// kStrip values of a root that is a float.
inline const float* strip_floats(const StripMachine& machine, int output) {
  return machine.strip_floats + machine.program->outputs[output].reg * kStrip;
}

/// The same for an int.
inline const int64_t* strip_ints(const StripMachine& machine, int output) {
  return machine.strip_ints + machine.program->outputs[output].reg * kStrip;
}

/// The same for a bool: 0 or 1.
inline const uint8_t* strip_bools(const StripMachine& machine, int output) {
  return machine.strip_bools + machine.program->outputs[output].reg * kStrip;
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
