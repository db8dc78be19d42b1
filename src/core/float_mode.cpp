// SPDX-License-Identifier: Apache-2.0
#include "core/float_mode.hpp"

#include <utility>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace flashtile {
namespace {

#if defined(__x86_64__)
// All exceptions masked; to nearest; flush to zero; denormals are zero.
constexpr uint32_t kKernelControl = 0x1F80 | 0x8000 | 0x0040;
#elif defined(__aarch64__)
constexpr uint32_t kKernelControl = 1u << 24;  // FZ, which is both
#else
constexpr uint32_t kKernelControl = 0;
#endif

thread_local KernelFloatMode* current = nullptr;

}  // namespace

uint32_t float_control() {
#if defined(__x86_64__)
  return _mm_getcsr();
#elif defined(__aarch64__)
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return static_cast<uint32_t>(control);
#else
  return 0;
#endif
}

void set_float_control([[maybe_unused]] uint32_t control) {
#if defined(__x86_64__)
  _mm_setcsr(control);
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(uint64_t{control}) : "memory");
#endif
}

KernelFloatMode::KernelFloatMode() : is_outermost_(current == nullptr) {
  if (!is_outermost_) return;
  caller_ = float_control();
  set_float_control(kKernelControl);
  current = this;
}

KernelFloatMode::~KernelFloatMode() {
  if (!is_outermost_) return;
  current = nullptr;
  set_float_control(caller_);
}

bool KernelFloatMode::is_on() { return current != nullptr; }

CallerFloatMode::CallerFloatMode() : left_(std::exchange(current, nullptr)) {
  if (left_ != nullptr) set_float_control(left_->caller_);
}

CallerFloatMode::~CallerFloatMode() {
  if (left_ == nullptr) return;
  current = left_;
  set_float_control(kKernelControl);
}

}  // namespace flashtile
