// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/current.hpp"

#include <map>
#include <mutex>

#include "flashtile/error.hpp"

namespace flashtile::cuda {
namespace {

/// The device's primary context, which PyTorch, JAX and the CUDA runtime share. Retained once, and
/// for ever: kernels stay loaded in it.
driver::ContextHandle primary_context(const Driver& driver, int32_t device_idx) {
  static std::mutex mutex;
  static std::map<int32_t, driver::ContextHandle> contexts;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = contexts.find(device_idx);
  if (found != contexts.end()) return found->second;
  driver::DeviceHandle device = 0;
  driver::ContextHandle handle = nullptr;
  driver.check(driver.api().cuDeviceGet(&device, device_idx),
               "CUDA device " + std::to_string(device_idx));
  driver.check(driver.api().cuDevicePrimaryCtxRetain(&handle, device),
               "context of CUDA device " + std::to_string(device_idx));
  contexts.emplace(device_idx, handle);
  return handle;
}

bool is_on_device(const Driver& driver, int32_t device_idx) {
  driver::DeviceHandle current = 0;
  driver::DeviceHandle wanted = 0;
  return driver.api().cuCtxGetDevice(&current) == driver::kSuccess &&
         driver.api().cuDeviceGet(&wanted, device_idx) == driver::kSuccess && current == wanted;
}

driver::ContextHandle context_of_stream(const Driver& driver, driver::StreamHandle stream) {
  driver::ContextHandle handle = nullptr;
  if (reinterpret_cast<uintptr_t>(stream) <= driver::kLastSpecialStream) return nullptr;
  return driver.api().cuStreamGetCtx(stream, &handle) == driver::kSuccess ? handle : nullptr;
}

}  // namespace

CurrentContext::CurrentContext(const Context& context) : driver_(Driver::required()) {
  const int32_t device_idx = context.device.index;
  const driver::Api& api = driver_.api();
  driver_.check(api.cuCtxGetCurrent(&handle_), "current CUDA context");
  if (handle_ != nullptr && is_on_device(driver_, device_idx)) return;
  handle_ = context_of_stream(driver_, stream_of(context));
  if (handle_ == nullptr) handle_ = primary_context(driver_, device_idx);
  driver_.check(api.cuCtxPushCurrent(handle_), "making a CUDA context current");
  is_pushed_ = true;
  if (!is_on_device(driver_, device_idx)) {
    driver::ContextHandle popped = nullptr;
    api.cuCtxPopCurrent(&popped);
    throw Error(ErrorCode::kInvalidArgument, "stream: it does not belong to CUDA device " +
                                                 std::to_string(device_idx) +
                                                 ", on which the tensors are");
  }
}

CurrentContext::~CurrentContext() {
  driver::ContextHandle popped = nullptr;
  if (is_pushed_) api().cuCtxPopCurrent(&popped);
}

uint64_t CurrentContext::id() const {
  unsigned long long id = 0;
  if (api().cuCtxGetId != nullptr && api().cuCtxGetId(handle_, &id) == driver::kSuccess) return id;
  return reinterpret_cast<uintptr_t>(handle_);
}

}  // namespace flashtile::cuda
