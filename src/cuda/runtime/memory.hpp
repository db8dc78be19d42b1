// SPDX-License-Identifier: Apache-2.0
//
// Device memory for tests and for the command line tool. The library itself allocates none.
#pragma once

#include <cstddef>

#include "cuda/runtime/driver_api.hpp"
#include "flashtile/context.hpp"

namespace flashtile::cuda {

/// Device memory that is freed with the object, both in the order of the context's stream. Copies
/// wait for the stream.
class DeviceMemory {
 public:
  /// Throws Error(kOutOfMemory) where the device has not enough.
  DeviceMemory(size_t bytes, const Context& context);
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();

  void* data() const { return reinterpret_cast<void*>(address_); }
  size_t bytes() const { return bytes_; }
  void upload(const void* from, size_t bytes, size_t offset = 0);
  void download(void* to, size_t bytes, size_t offset = 0) const;
  void fill(unsigned char value);

 private:
  Context context_;
  driver::Address address_ = 0;
  size_t bytes_ = 0;
  bool is_pooled_ = false;  ///< from the stream's pool (CUDA 11.2)
};

/// Waits until the context's stream has done all that was put on it.
void synchronize(const Context& context);

/// Free and total bytes of the device.
struct MemoryInfo {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
};
MemoryInfo memory_info(const Context& context);

}  // namespace flashtile::cuda
