// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/runtime/driver.hpp"
#include "flashtile/context.hpp"

namespace flashtile::cuda {

inline driver::StreamHandle stream_of(const Context& context) {
  return static_cast<driver::StreamHandle>(context.stream);
}

/// Makes the CUDA context of a call current for as long as this lives, and puts back what was
/// before. It is the thread's current one where that belongs to the device, else that of the
/// stream, else the device's primary one: so the library works inside other programs' contexts.
class CurrentContext {
 public:
  explicit CurrentContext(const Context& context);
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  ~CurrentContext();

  const Driver& driver() const { return driver_; }
  const driver::Api& api() const { return driver_.api(); }
  /// Differs from that of every other CUDA context of the process, destroyed ones included where
  /// the driver (12.0) can tell.
  uint64_t id() const;

 private:
  const Driver& driver_;
  driver::ContextHandle handle_ = nullptr;
  bool is_pushed_ = false;
};

}  // namespace flashtile::cuda
