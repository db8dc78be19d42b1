// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/memory.hpp"

#include <string>

#include "cuda/runtime/current.hpp"
#include "cuda/runtime/launch.hpp"
#include "flashtile/error.hpp"

namespace flashtile::cuda {

DeviceMemory::DeviceMemory(size_t bytes, const Context& context)
    : context_(context), bytes_(bytes) {
  if (bytes == 0) return;
  const CurrentContext current(context_);
  const driver::Api& api = current.api();
  // Some devices (of virtual machines) have no pools.
  is_pooled_ = api.cuMemAllocAsync != nullptr && api.cuMemFreeAsync != nullptr &&
               api.cuMemAllocAsync(&address_, bytes, stream_of(context_)) == driver::kSuccess;
  if (is_pooled_) return;
  current.driver().check(api.cuMemAlloc(&address_, bytes),
                         "allocating " + std::to_string(bytes) + " bytes of device memory");
}

DeviceMemory::~DeviceMemory() {
  if (address_ == 0) return;
  try {
    const CurrentContext current(context_);
    if (is_pooled_) {
      current.api().cuMemFreeAsync(address_, stream_of(context_));
    } else {
      current.api().cuMemFree(address_);
    }
  } catch (const Error&) {
    // The CUDA context is gone, and the memory with it.
  }
}

void DeviceMemory::upload(const void* from, size_t bytes, size_t offset) {
  if (bytes == 0) return;
  const CurrentContext current(context_);
  current.driver().check(
      current.api().cuMemcpyHtoDAsync(address_ + offset, from, bytes, stream_of(context_)),
      "copying to the device");
  synchronize(context_);
}

void DeviceMemory::download(void* to, size_t bytes, size_t offset) const {
  if (bytes == 0) return;
  const CurrentContext current(context_);
  current.driver().check(
      current.api().cuMemcpyDtoHAsync(to, address_ + offset, bytes, stream_of(context_)),
      "copying from the device");
  synchronize(context_);
}

void DeviceMemory::fill(unsigned char value) { fill_bytes(data(), value, bytes_, context_); }

void synchronize(const Context& context) {
  const CurrentContext current(context);
  current.driver().check(current.api().cuStreamSynchronize(stream_of(context)),
                         "waiting for a stream");
}

MemoryInfo memory_info(const Context& context) {
  const CurrentContext current(context);
  MemoryInfo info;
  current.driver().check(current.api().cuMemGetInfo(&info.free_bytes, &info.total_bytes),
                         "asking for the free memory");
  return info;
}

}  // namespace flashtile::cuda
