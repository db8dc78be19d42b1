// SPDX-License-Identifier: Apache-2.0
//
// Architectures by name, with a usual device of each: what plans are made for where there is no
// GPU.
#include "core/gpu_model.hpp"

#include <array>

#include "cuda/runtime/device.hpp"

namespace flashtile {
namespace {

constexpr int64_t kKib = 1024;
constexpr int64_t kMib = 1024 * kKib;

struct UsualDevice {
  int32_t compute_capability;
  const char* name;
  int32_t num_sms;
  int64_t shared_kib_per_sm;
  int64_t l2_mib;
};

// A CTA gets what an SM has but 1 KiB.
constexpr std::array kUsualDevices = {
    UsualDevice{80, "A100", 108, 164, 40},     UsualDevice{86, "RTX 3090", 82, 100, 6},
    UsualDevice{87, "Orin", 16, 164, 4},       UsualDevice{89, "RTX 4090", 128, 100, 72},
    UsualDevice{90, "H100 SXM", 132, 228, 50}, UsualDevice{100, "B200", 148, 228, 126},
    UsualDevice{103, "B300", 148, 228, 126},   UsualDevice{120, "RTX 5090", 170, 100, 96},
    UsualDevice{121, "GB10", 48, 100, 24},
};

const std::vector<GpuModel>& all_models() {
  static const std::vector<GpuModel> models = [] {
    std::vector<GpuModel> list;
    for (const UsualDevice& device : kUsualDevices) {
      GpuModel model;
      model.arch = cuda::arch_of(device.compute_capability);
      model.compute_capability = device.compute_capability;
      model.num_sms = device.num_sms;
      model.shared_bytes_per_cta = (device.shared_kib_per_sm - 1) * kKib;
      model.shared_bytes_per_sm = device.shared_kib_per_sm * kKib;
      model.l2_bytes = device.l2_mib * kMib;
      model.name = device.name;
      list.push_back(std::move(model));
    }
    return list;
  }();
  return models;
}

}  // namespace

namespace cuda {

std::string arch_of(int32_t compute_capability) {
  // Tensor memory access and wgmma belong to 9.0 alone: its own target has them.
  const std::string text = "sm_" + std::to_string(compute_capability);
  return compute_capability == 90 ? text + "a" : text;
}

}  // namespace cuda

const GpuModel& gpu_model(const Device& device) { return cuda::device_info(device.index).model; }

const GpuModel* named_gpu_model(std::string_view arch) {
  for (const GpuModel& model : all_models()) {
    const std::string plain = "sm_" + std::to_string(model.compute_capability);
    if (arch == model.arch || arch == plain) return &model;
  }
  return nullptr;
}

std::vector<std::string> known_gpu_archs() {
  std::vector<std::string> names;
  for (const GpuModel& model : all_models()) names.push_back(model.arch);
  return names;
}

}  // namespace flashtile
