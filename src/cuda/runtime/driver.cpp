// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/driver.hpp"

#include <dlfcn.h>

#include "flashtile/error.hpp"

namespace flashtile::cuda {
namespace {

// Without the development package there is only the first name.
constexpr const char* kLibraryNames[] = {"libcuda.so.1", "libcuda.so"};

void* open_library(std::string& fault) {
  for (const char* name : kLibraryNames) {
    if (void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    // The first text is the one that matters: "file too short" tells more than "no such file".
    const char* text = ::dlerror();
    if (fault.empty()) fault = text == nullptr ? "cannot be opened" : text;
  }
  return nullptr;
}

template <class Pointer>
bool find(void* library, const char* symbol, Pointer& member) {
  member = reinterpret_cast<Pointer>(::dlsym(library, symbol));
  return member != nullptr;
}

/// Gives the first required function that the library lacks, or null.
const char* load_api(void* library, driver::Api& api) {
#define FLASHTILE_LOAD(member, symbol, parameters) \
  if (!find(library, symbol, api.member)) return symbol;
  FLASHTILE_DRIVER_REQUIRED(FLASHTILE_LOAD)
#undef FLASHTILE_LOAD
#define FLASHTILE_LOAD(member, symbol, parameters) find(library, symbol, api.member);
  FLASHTILE_DRIVER_OPTIONAL(FLASHTILE_LOAD)
#undef FLASHTILE_LOAD
  return nullptr;
}

}  // namespace

struct DriverSlot {
  Driver driver;
  std::string fault = driver.open();
};

namespace {

const DriverSlot& slot() {
  // Never destroyed: other static objects may use the driver while the process ends.
  static const DriverSlot* const slot = new DriverSlot();
  return *slot;
}

}  // namespace

std::string Driver::open() {
  std::string fault;
  void* library = open_library(fault);
  if (library == nullptr) return "no CUDA driver: " + fault;
  if (const char* missing = load_api(library, api_)) {
    return std::string("the CUDA driver is too old: it has no ") + missing;
  }
  const driver::Result result = api_.cuInit(0);
  if (result != driver::kSuccess) return "the CUDA driver does not start: " + error_text(result);
  if (api_.cuDriverGetVersion(&version_) != driver::kSuccess ||
      api_.cuDeviceGetCount(&num_devices_) != driver::kSuccess) {
    return "the CUDA driver does not answer";
  }
  if (num_devices_ == 0) return "the CUDA driver has no device";
  return {};
}

const Driver* Driver::get() { return slot().fault.empty() ? &slot().driver : nullptr; }

const std::string& Driver::fault() { return slot().fault; }

const Driver& Driver::required() {
  if (!slot().fault.empty()) throw Error(ErrorCode::kUnsupported, slot().fault);
  return slot().driver;
}

std::string Driver::error_text(driver::Result result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (api_.cuGetErrorName(result, &name) != driver::kSuccess || name == nullptr) {
    return "CUDA error " + std::to_string(result);
  }
  api_.cuGetErrorString(result, &text);
  return text == nullptr ? std::string(name) : std::string(name) + " (" + text + ")";
}

void Driver::check(driver::Result result, std::string_view what) const {
  if (result == driver::kSuccess) return;
  const ErrorCode code =
      result == driver::kOutOfMemory ? ErrorCode::kOutOfMemory : ErrorCode::kInternal;
  throw Error(code, std::string(what) + ": " + error_text(result));
}

std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace flashtile::cuda
