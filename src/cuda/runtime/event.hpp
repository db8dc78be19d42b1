// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/runtime/driver_api.hpp"
#include "flashtile/context.hpp"

namespace flashtile::cuda {

/// A point in the work of a stream, for timing on the device's own clock.
class Event {
 public:
  explicit Event(const Context& context);
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();

  /// Marks the place behind all that is on the context's stream.
  void record();
  /// Waits until the device has come to the place.
  void wait() const;
  /// Makes what is put on the stream of `other` from now on wait for the place.
  void hold(const Context& other) const;
  /// Time between two places that the device has come to.
  double milliseconds_since(const Event& start) const;

 private:
  Context context_;
  driver::EventHandle handle_ = nullptr;
};

}  // namespace flashtile::cuda
