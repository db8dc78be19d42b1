// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels/strip.hpp"
#include "unit/strip_runner.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

inline void run_row(variant::testing::StripRow& row) {
  StripMachine machine;
  strip_open(machine, row.program, row.memory);
  strip_tile(machine, row.inputs);
  alignas(64) float score[kStrip];
  for (int64_t begin = 0; begin < row.num_keys; begin += kStrip) {
    const int64_t left = row.num_keys - begin;
    const int64_t count = left < kStrip ? left : kStrip;
    for (int64_t i = 0; i < kStrip; ++i) {
      score[i] = i < count && row.score != nullptr ? row.score[begin + i] : __builtin_nanf("");
    }
    strip_columns(machine, row.k_begin + begin, count);
    strip_row(machine, row.q_idx);
    strip_run(machine, score);
    for (int r = 0; r < row.program.num_outputs; ++r) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = begin + i;
        switch (row.program.outputs[r].type) {
          case variant::Type::kBool:
            static_cast<uint8_t*>(row.outputs[r])[at] = strip_bools(machine, r)[i];
            break;
          case variant::Type::kInt:
            static_cast<int64_t*>(row.outputs[r])[at] = strip_ints(machine, r)[i];
            break;
          case variant::Type::kFloat:
            static_cast<float*>(row.outputs[r])[at] = strip_floats(machine, r)[i];
            break;
        }
      }
    }
  }
  row.error = machine.error;
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
