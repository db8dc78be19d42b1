// SPDX-License-Identifier: Apache-2.0
#include "fake_driver_support.hpp"

#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "cuda/jit/kernel_pack.hpp"
#include "cuda/jit/program.hpp"

namespace flashtile::fake {
namespace {

std::string make_run_folder() {
  std::string name = (std::filesystem::temp_directory_path() / "flashtile_fake_XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  std::vector<std::pair<cuda::Digest, cuda::CompiledKernel>> kernels;
  for (const char* stem : {"one", "two", "bad"}) {
    cuda::CompiledKernel kernel;
    kernel.entry = stem;
    kernel.arch = "sm_90a";
    kernel.compiler_version = 13000;
    kernel.cubin = stem == std::string("bad") ? kBadImage : "machine code";
    kernels.emplace_back(cuda::key_of(cuda::program_of(packed_source(stem))), kernel);
  }
  cuda::write_kernel_pack(name + "/pack", kernels);
  ::setenv("FLASHTILE_PACK", (name + "/pack").c_str(), 1);
  ::setenv("FLASHTILE_CACHE_DIR", (name + "/cache").c_str(), 1);
  return name;
}

class RunFolder : public ::testing::Environment {
 public:
  void SetUp() override { run_folder(); }
  void TearDown() override { std::filesystem::remove_all(run_folder()); }
};

const auto* const registered = ::testing::AddGlobalTestEnvironment(new RunFolder());

}  // namespace

const FakeCuda& fake_cuda() {
  static const FakeCuda fake = [] {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
    FakeCuda found;
    const auto state = library == nullptr ? nullptr : ::dlsym(library, "fake_cuda_state");
    if (state == nullptr) throw std::runtime_error("libcuda.so.1 is not the fake driver");
    found.state = reinterpret_cast<State* (*)()>(state)();
    const auto find = [&](const char* name, auto& member) {
      member = reinterpret_cast<std::remove_reference_t<decltype(member)>>(::dlsym(library, name));
    };
    find("fake_cuda_create_context", found.create_context);
    find("fake_cuda_destroy_context", found.destroy_context);
    find("fake_cuda_stack_depth", found.stack_depth);
    return found;
  }();
  return fake;
}

const std::string& run_folder() {
  static const std::string folder = make_run_folder();
  return folder;
}

KernelSource packed_source(const std::string& stem) {
  return {stem, "struct Config {};", "sm_90a", {}};
}

}  // namespace flashtile::fake
