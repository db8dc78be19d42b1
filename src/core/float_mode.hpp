// SPDX-License-Identifier: Apache-2.0
//
// How a thread rounds and what it makes of subnormal numbers. Kernels of a CPU take those below the
// smallest normal number for zero: on Intel's cores products that have or give one are many
// times slower than others, and weights that decay pass through them on their way to zero.
#pragma once

#include <cstdint>

namespace flashtile {

/// The calling thread's control register of floating point: MXCSR on x86-64, FPCR on AArch64;
/// nothing elsewhere.
uint32_t float_control();
void set_float_control(uint32_t control);

/// While it lives, the calling thread computes as kernels do, whatever its caller has set: to
/// nearest, without traps, and with zero for subnormal operands and results. Does nothing within
/// another one.
class KernelFloatMode {
 public:
  KernelFloatMode();
  ~KernelFloatMode();
  KernelFloatMode(const KernelFloatMode&) = delete;
  KernelFloatMode& operator=(const KernelFloatMode&) = delete;

  static bool is_on();

 private:
  friend class CallerFloatMode;
  uint32_t caller_ = 0;
  bool is_outermost_;
};

/// While it lives, a thread in the kernels' mode is back in its caller's: around what may start
/// threads, which inherit the mode, or run the work of others.
class CallerFloatMode {
 public:
  CallerFloatMode();
  ~CallerFloatMode();
  CallerFloatMode(const CallerFloatMode&) = delete;
  CallerFloatMode& operator=(const CallerFloatMode&) = delete;

 private:
  KernelFloatMode* left_;
};

}  // namespace flashtile
