// SPDX-License-Identifier: Apache-2.0
#include "gpu_info.hpp"

#include "cuda/jit/kernel_store.hpp"
#include "cuda/jit/nvrtc.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/runtime/driver.hpp"

namespace flashtile::cli {
namespace {

using cuda::Driver;

std::string bytes_of(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

std::string device_text(const cuda::DeviceInfo& info) {
  const GpuModel& model = info.model;
  if (!model.fault.empty()) return model.fault;
  std::string text = model.name + ", " + model.arch + ", " + std::to_string(model.num_sms) +
                     " SMs, " + bytes_of(info.memory_bytes) + ", shared memory " +
                     bytes_of(model.shared_bytes_per_cta) + " a CTA, L2 " +
                     bytes_of(model.l2_bytes);
  if (info.clock_khz > 0) text += ", " + std::to_string(info.clock_khz / 1000) + " MHz";
  if (info.peak_bytes_per_second() > 0) {
    text += ", " + number_text(info.peak_bytes_per_second() / 1e9) + " GB/s";
  }
  return text;
}

std::string nvrtc_text() {
  const cuda::Nvrtc* nvrtc = cuda::Nvrtc::get();
  if (nvrtc != nullptr) return cuda::cuda_version_text(nvrtc->version()) + ", " + nvrtc->path();
  const std::string& fault = cuda::Nvrtc::fault();
  return fault.substr(0, fault.find('\n'));
}

std::string cache_text(cuda::DiskCache& cache) {
  if (cache.max_bytes() == 0) return "off (FLASHTILE_CACHE_MB is 0)";
  const std::string fault = cache.fault();
  if (!fault.empty()) return "in memory only: " + fault;
  const cuda::DiskCache::Summary summary = cache.summary();
  return cache.folder() + ", " + std::to_string(summary.num_kernels) + " kernels, " +
         bytes_of(summary.bytes) + " of " + bytes_of(cache.max_bytes());
}

}  // namespace

int num_gpus() { return Driver::get() == nullptr ? 0 : Driver::get()->num_devices(); }

std::string device_names() {
  std::string names = "cpu";
  for (int i = 0; i < num_gpus(); ++i) names += ", cuda:" + std::to_string(i);
  return names;
}

void add_gpu_rows(Table& table) {
  const Driver* driver = Driver::get();
  table.add({"cuda driver", driver == nullptr
                                ? Driver::fault()
                                : "CUDA " + cuda::cuda_version_text(driver->version())});
  for (int i = 0; i < num_gpus(); ++i) {
    table.add({"cuda:" + std::to_string(i), device_text(cuda::device_info(i))});
  }
  table.add({"nvrtc", nvrtc_text()});
  cuda::KernelStore& store = cuda::KernelStore::of_process();
  table.add({"kernel cache", cache_text(store.disk())});
  for (const auto& pack : store.packs()) {
    table.add({"kernel pack", pack->path() + ", " + std::to_string(pack->num_kernels()) +
                                  " kernels" +
                                  (pack->is_for_this_library() ? "" : " of another version")});
  }
  for (const std::string& fault : store.pack_faults()) table.add({"kernel pack", fault});
}

}  // namespace flashtile::cli
