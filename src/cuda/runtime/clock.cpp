// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/clock.hpp"

#include <dlfcn.h>

#include <type_traits>

#include "cuda/runtime/driver.hpp"

namespace flashtile::cuda {
namespace {

using NvmlDevice = struct NvmlDeviceTag*;
constexpr int kNvmlSuccess = 0;
constexpr int kNvmlSmClock = 1;

/// What is used of NVML, the library that nvidia-smi asks.
struct Nvml {
  int (*init)() = nullptr;
  int (*device_by_bus_id)(const char* id, NvmlDevice* device) = nullptr;
  int (*clock)(NvmlDevice device, int kind, unsigned int* mhz) = nullptr;
};

/// Null where it is not there or does not start.
const Nvml* nvml() {
  static const Nvml* const opened = []() -> const Nvml* {
    void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    auto* found = new Nvml();
    const auto find = [&](const char* symbol, auto& member) {
      member =
          reinterpret_cast<std::remove_reference_t<decltype(member)>>(::dlsym(library, symbol));
      return member != nullptr;
    };
    const bool is_complete = find("nvmlInit_v2", found->init) &&
                             find("nvmlDeviceGetHandleByPciBusId_v2", found->device_by_bus_id) &&
                             find("nvmlDeviceGetClockInfo", found->clock);
    return is_complete && found->init() == kNvmlSuccess ? found : nullptr;
  }();
  return opened;
}

}  // namespace

std::optional<double> sm_clock_mhz(int32_t device_idx) {
  const Driver* driver = Driver::get();
  if (driver == nullptr || driver->api().cuDeviceGetPCIBusId == nullptr || nvml() == nullptr) {
    return std::nullopt;
  }
  driver::DeviceHandle device = 0;
  // NVML counts all devices of the machine, the driver those that the process may see.
  char bus_id[32] = {};
  NvmlDevice handle = nullptr;
  unsigned int mhz = 0;
  const bool is_known =
      driver->api().cuDeviceGet(&device, device_idx) == driver::kSuccess &&
      driver->api().cuDeviceGetPCIBusId(bus_id, sizeof bus_id, device) == driver::kSuccess &&
      nvml()->device_by_bus_id(bus_id, &handle) == kNvmlSuccess &&
      nvml()->clock(handle, kNvmlSmClock, &mhz) == kNvmlSuccess;
  if (!is_known) return std::nullopt;
  return static_cast<double>(mhz);
}

}  // namespace flashtile::cuda
