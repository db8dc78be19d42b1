// SPDX-License-Identifier: Apache-2.0
//
// What the tests of compiling and keeping kernels share.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cuda/jit/compiled_kernel.hpp"
#include "cuda/jit/program.hpp"

namespace flashtile::cuda {

/// A folder of its own for each test, removed at the end.
class JitFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "flashtile_jit_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::vector<std::string> names_in(const std::string& folder) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path(folder))) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  std::filesystem::path folder_;
};

inline std::string read_all(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline void write_all(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
}

/// A kernel that no compiler has made; `seed` makes another one.
inline CompiledKernel sample_kernel(size_t cubin_bytes, int seed = 0) {
  CompiledKernel kernel;
  kernel.entry = "sample";
  kernel.arch = "sm_80";
  kernel.compiler_version = 13000;
  kernel.usage = {.num_registers = 40 + seed,
                  .stack_bytes = 16,
                  .spill_store_bytes = 8,
                  .spill_load_bytes = 12,
                  .static_shared_bytes = 256};
  kernel.notes = "a note\n";
  for (size_t i = 0; i < cubin_bytes; ++i) {
    kernel.cubin += static_cast<char>((i * 31 + static_cast<size_t>(seed) * 7) % 251);
  }
  return kernel;
}

inline bool is_same(const CompiledKernel& a, const CompiledKernel& b) {
  return a.entry == b.entry && a.arch == b.arch && a.cubin == b.cubin && a.notes == b.notes &&
         a.usage == b.usage && a.compiler_version == b.compiler_version;
}

inline Program sample_program(const std::string& arch = "sm_80") {
  return {"sample", "extern \"C\" __global__ void sample() {}", arch, {}};
}

/// Runs the body in a child process that ends with its result; gives the child's number.
template <class Body>
pid_t start_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  return child;
}

/// The exit code of a child; -1 where it was killed.
inline int wait_for(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace flashtile::cuda
