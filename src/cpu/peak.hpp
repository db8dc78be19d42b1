// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashtile/context.hpp"
#include "flashtile/dtype.hpp"

namespace flashtile::cpu {

/// What the arithmetic units of the context's workers do at best, in 1e9 operations a second, a
/// multiply-add counted as two: measured with a loop that touches no memory. Takes some tenths of a
/// second; the result is the best of several runs.
struct Peak {
  double f32_gflops = 0;       ///< fused multiply-add of float32
  double bf16_dot_gflops = 0;  ///< pairs of bfloat16 into float32; 0 where there is no such unit
};

Peak measure_peak(const Context& context);

/// What the context's workers read from memory at best, in 1e9 bytes a second: each sums a part of
/// its own of some hundred MiB, far beyond the caches. Takes some tenths of a second.
double measure_read_bandwidth(const Context& context);

/// The rate that work on operands of a dtype is measured against: for bf16 that of the faster unit.
double peak_gflops(const Peak& peak, DType dtype);

}  // namespace flashtile::cpu
