// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/device.hpp"

#include <memory>
#include <vector>

#include "cuda/runtime/driver.hpp"

namespace flashtile::cuda {
namespace {

class Attributes {
 public:
  Attributes(const Driver& driver, driver::DeviceHandle device)
      : driver_(driver), device_(device) {}

  int get(driver::DeviceAttribute attribute) const {
    int value = 0;
    const bool is_known =
        driver_.api().cuDeviceGetAttribute(&value, attribute, device_) == driver::kSuccess;
    return is_known ? value : 0;
  }

 private:
  const Driver& driver_;
  driver::DeviceHandle device_;
};

/// Fills in what the driver says; gives what is wrong, or nothing.
std::string query(int32_t device_idx, DeviceInfo& info) {
  const Driver* driver = Driver::get();
  if (driver == nullptr) return Driver::fault();
  if (device_idx < 0 || device_idx >= driver->num_devices()) {
    return "there is no CUDA device " + std::to_string(device_idx) + ", only " +
           std::to_string(driver->num_devices());
  }
  driver::DeviceHandle device = 0;
  if (driver->api().cuDeviceGet(&device, device_idx) != driver::kSuccess) {
    return "CUDA device " + std::to_string(device_idx) + " does not answer";
  }
  const Attributes attributes(*driver, device);
  char name[256] = {};
  driver->api().cuDeviceGetName(name, sizeof name - 1, device);
  size_t bytes = 0;
  driver->api().cuDeviceTotalMem(&bytes, device);
  GpuModel& model = info.model;
  model.name = name;
  model.compute_capability = 10 * attributes.get(driver::kComputeCapabilityMajor) +
                             attributes.get(driver::kComputeCapabilityMinor);
  model.num_sms = attributes.get(driver::kNumSms);
  model.shared_bytes_per_cta = attributes.get(driver::kSharedBytesPerCtaOptIn);
  model.shared_bytes_per_sm = attributes.get(driver::kSharedBytesPerSm);
  model.l2_bytes = attributes.get(driver::kL2Bytes);
  model.is_present = true;
  info.memory_bytes = static_cast<int64_t>(bytes);
  info.clock_khz = attributes.get(driver::kClockRateKhz);
  info.memory_clock_khz = attributes.get(driver::kMemoryClockRateKhz);
  info.memory_bus_bits = attributes.get(driver::kMemoryBusBits);
  info.registers_per_sm = attributes.get(driver::kRegistersPerSm);
  model.arch = arch_of(model.compute_capability);
  return {};
}

std::unique_ptr<DeviceInfo> make_info(int32_t device_idx) {
  auto info = std::make_unique<DeviceInfo>();
  info->model.fault = query(device_idx, *info);
  if (!info->model.fault.empty()) info->model.arch.clear();
  return info;
}

/// All devices of the machine, and behind them one that does not exist.
const std::vector<std::unique_ptr<DeviceInfo>>& all_devices() {
  static const auto* const devices = [] {
    auto* list = new std::vector<std::unique_ptr<DeviceInfo>>();
    const int count = Driver::get() == nullptr ? 0 : Driver::get()->num_devices();
    for (int32_t i = 0; i <= count; ++i) list->push_back(make_info(i));
    return list;
  }();
  return *devices;
}

}  // namespace

double DeviceInfo::peak_bytes_per_second() const {
  // Two transfers a clock, as all memory of these devices makes them.
  return 2e3 * static_cast<double>(memory_clock_khz) * static_cast<double>(memory_bus_bits) / 8;
}

double DeviceInfo::peak_operations_per_second(DType dtype) const {
  const bool is_half = dtype == DType::kF16 || dtype == DType::kBF16;
  double per_clock = 0;  // of a multiprocessor
  switch (model.compute_capability) {
    case 80:
      per_clock = is_half ? 2048 : 128;
      break;
    case 86:
    case 89:
    case 120:
      per_clock = is_half ? 1024 : 256;
      break;
    case 90:
      per_clock = is_half ? 4096 : 256;
      break;
    case 100:
      per_clock = is_half ? 8192 : 256;
      break;
    default:
      break;
  }
  return per_clock * model.num_sms * 1e3 * static_cast<double>(clock_khz);
}

const DeviceInfo& device_info(int32_t device_idx) {
  const auto& devices = all_devices();
  const size_t last = devices.size() - 1;
  const auto idx = static_cast<size_t>(device_idx);
  return *devices[device_idx < 0 || idx > last ? last : idx];
}

}  // namespace flashtile::cuda
