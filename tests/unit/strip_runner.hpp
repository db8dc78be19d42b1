// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "variant/expr/strip_program.hpp"

namespace flashtile::variant::testing {

/// One row of `num_keys` keys from `k_begin` on, evaluated by the strip interpreter of one
/// instruction set. `outputs[r]` has room for num_keys values of root r's type.
struct StripRow {
  StripProgram program;
  StripInputs inputs;
  void* memory = nullptr;  ///< program_bytes(program) at a multiple of 64
  int64_t q_idx = 0;
  int64_t k_begin = 0;
  int64_t num_keys = 0;
  const float* score = nullptr;  ///< num_keys; null for 0
  void* const* outputs = nullptr;
  int32_t error = 0;
};

struct StripInterpreter {
  const char* name;
  int64_t (*bytes)(const StripProgram& program);
  void (*run)(StripRow& row);
};

extern const StripInterpreter kStripScalar;
extern const StripInterpreter kStripAvx2;
extern const StripInterpreter kStripAvx512;
extern const StripInterpreter kStripNeon;

}  // namespace flashtile::variant::testing
