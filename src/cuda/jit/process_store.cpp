// SPDX-License-Identifier: Apache-2.0
//
// The kernel store of this process, and the public functions that fill it.
#include <dlfcn.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "core/env.hpp"
#include "cuda/jit/kernel_store.hpp"
#include "cuda/jit/nvrtc.hpp"
#include "cuda/runtime/driver.hpp"
#include "flashtile/gpu.hpp"

namespace flashtile {
namespace cuda {
namespace {

/// The pack that lies beside the library, or beside the program that it is linked into; empty where
/// there is none.
std::string pack_beside_library() {
  Dl_info info = {};
  const auto here = reinterpret_cast<const void*>(&pack_beside_library);
  if (::dladdr(here, &info) == 0 || info.dli_fname == nullptr) return {};
  std::filesystem::path library(info.dli_fname);
  std::error_code error;
  // A program that was found on PATH is known by its bare name: its folder is not the current one.
  if (!library.has_parent_path()) library = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const std::string path = (library.parent_path() / "flashtile.pack").string();
  return ::access(path.c_str(), R_OK) == 0 ? path : std::string();
}

void find_compiler(KernelStore::Options& options) {
  const Nvrtc* nvrtc = Nvrtc::get();
  if (nvrtc == nullptr) {
    options.no_compiler = Nvrtc::fault();
    return;
  }
  options.compile = [nvrtc](const Program& program) { return nvrtc->compile(program); };
}

KernelStore::Options options_of_process() {
  KernelStore::Options options;
  options.cache_folder = env_cache_dir();
  options.cache_bytes = env_cache_mb() << 20;
  options.pack_paths = env_kernel_packs();
  const std::string beside = pack_beside_library();
  if (!beside.empty()) options.pack_paths.push_back(beside);
  const Driver* driver = Driver::get();
  if (driver != nullptr) options.max_compiler_major = driver->version() / 1000;
  return options;
}

}  // namespace

KernelStore& KernelStore::of_process() {
  // Never destroyed: kernels may be asked for while the process ends.
  static KernelStore* const store = new KernelStore(options_of_process(), find_compiler);
  return *store;
}

}  // namespace cuda

void add_kernel_pack(const std::string& path) { cuda::KernelStore::of_process().add_pack(path); }

}  // namespace flashtile
