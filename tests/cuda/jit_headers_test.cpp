// SPDX-License-Identifier: Apache-2.0
//
// The device text that the library carries.
#include <algorithm>
#include <set>

#include "core/gpu_model.hpp"
#include "cuda/jit/device_text.hpp"
#include "cuda/jit/nvrtc.hpp"
#include "cuda/jit/sha256.hpp"
#include "cuda/jit_support.hpp"
#include "flashtile/error.hpp"

namespace flashtile::cuda {
namespace {

TEST(JitHeaders, AreTheFilesOfTheTree) {
  const std::filesystem::path source = std::filesystem::path(FLASHTILE_SOURCE_DIR) / "src";
  std::set<std::string> in_tree;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(source / "cuda/device")) {
    if (entry.is_regular_file()) {
      in_tree.insert(std::filesystem::relative(entry.path(), source).generic_string());
    }
  }
  std::set<std::string> embedded;
  for (const DeviceHeader& header : device_headers()) {
    embedded.insert(std::string(header.name));
    EXPECT_TRUE(header.text == read_all((source / header.name).string())) << header.name;
  }
  EXPECT_EQ(embedded.size(), device_headers().size());
  EXPECT_TRUE(embedded.contains("variant/philox.hpp"));
  EXPECT_TRUE(embedded.contains("variant/position_mask.hpp"));
  EXPECT_TRUE(std::includes(embedded.begin(), embedded.end(), in_tree.begin(), in_tree.end()));
}

TEST(JitHeaders, DigestIsThatOfNamesAndTexts) {
  std::string digests;
  for (const DeviceHeader& header : device_headers()) {
    digests += std::string(header.name) + " " + to_hex(sha256(header.text)) + "\n";
  }
  EXPECT_EQ(device_headers_digest(), to_hex(sha256(digests)));
}

/// Compiles each header alone, included twice. Kernels need a Config, so they are not among them.
void compile_each_alone(const std::string& arch) {
  if (Nvrtc::get() == nullptr) GTEST_SKIP() << Nvrtc::fault();
  if (!Nvrtc::get()->knows(arch)) GTEST_SKIP() << "this NVRTC does not know " << arch;
  for (const DeviceHeader& header : device_headers()) {
    if (header.name.starts_with("cuda/device/kernels/")) continue;
    const std::string line = "#include \"" + std::string(header.name) + "\"\n";
    const std::string text = line + line + "extern \"C\" __global__ void alone() {}\n";
    try {
      EXPECT_EQ(Nvrtc::get()->compile({"alone", text, arch, {}}).notes, "") << header.name;
    } catch (const Error& error) {
      ADD_FAILURE() << header.name << ": " << error.what();
    }
  }
}

TEST(JitHeaders, CompileAlone) { compile_each_alone("sm_80"); }

class JitHeadersFull : public ::testing::TestWithParam<const char*> {};

TEST_P(JitHeadersFull, CompileAlone) { compile_each_alone(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Archs, JitHeadersFull,
                         ::testing::Values("sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"),
                         [](const auto& arch) { return std::string(arch.param); });

}  // namespace
}  // namespace flashtile::cuda
