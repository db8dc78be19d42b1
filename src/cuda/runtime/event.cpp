// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/event.hpp"

#include "cuda/runtime/current.hpp"
#include "flashtile/error.hpp"

namespace flashtile::cuda {

Event::Event(const Context& context) : context_(context) {
  const CurrentContext current(context_);
  current.driver().check(current.api().cuEventCreate(&handle_, driver::kEventDefault),
                         "creating an event");
}

Event::~Event() {
  try {
    const CurrentContext current(context_);
    current.api().cuEventDestroy(handle_);
  } catch (const Error&) {
    // The CUDA context is gone, and the event with it.
  }
}

void Event::record() {
  const CurrentContext current(context_);
  current.driver().check(current.api().cuEventRecord(handle_, stream_of(context_)),
                         "recording an event");
}

void Event::wait() const {
  const CurrentContext current(context_);
  current.driver().check(current.api().cuEventSynchronize(handle_), "waiting for an event");
}

void Event::hold(const Context& other) const {
  const CurrentContext current(other);
  current.driver().check(current.api().cuStreamWaitEvent(stream_of(other), handle_, 0),
                         "making a stream wait for an event");
}

double Event::milliseconds_since(const Event& start) const {
  const CurrentContext current(context_);
  float milliseconds = 0;
  current.driver().check(current.api().cuEventElapsedTime(&milliseconds, start.handle_, handle_),
                         "asking for the time between two events");
  return static_cast<double>(milliseconds);
}

}  // namespace flashtile::cuda
