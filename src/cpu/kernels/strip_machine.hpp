// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/kernels/strip_math.hpp"
#include "variant/expr/strip_program.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// The registers of one thread that runs a strip program, and where it is. See strip.hpp.
struct StripMachine {
  const variant::StripProgram* program = nullptr;
  const variant::StripInputs* inputs = nullptr;
  const float* score = nullptr;
  int64_t q_idx = 0;
  int64_t k_idx = 0;
  int64_t count = 0;  ///< lanes of the strip that are keys
  int32_t error = 0;  ///< 1 + the aux tensor whose index was out of range first; 0 for none

  uint8_t* strip_bools = nullptr;
  int64_t* strip_ints = nullptr;
  float* strip_floats = nullptr;
  uint8_t* scalar_bools = nullptr;
  int64_t* scalar_ints = nullptr;
  float* scalar_floats = nullptr;

  // Register `reg`: N = 1 for a scalar one, N = kStrip for a strip.
  template <int N>
  uint8_t* bools(int32_t reg) const {
    return (N == 1 ? scalar_bools : strip_bools) + static_cast<int64_t>(reg) * N;
  }
  template <int N>
  int64_t* ints(int32_t reg) const {
    return (N == 1 ? scalar_ints : strip_ints) + static_cast<int64_t>(reg) * N;
  }
  template <int N>
  float* floats(int32_t reg) const {
    return (N == 1 ? scalar_floats : strip_floats) + static_cast<int64_t>(reg) * N;
  }
};

}  // namespace flashtile::cpu::FLASHTILE_ISA
