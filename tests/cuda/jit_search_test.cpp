// SPDX-License-Identifier: Apache-2.0
//
// Where NVRTC is looked for, and which one is taken.
#include <algorithm>

#include "cuda/jit/nvrtc.hpp"
#include "cuda/jit/nvrtc_search.hpp"
#include "cuda/jit_support.hpp"

namespace flashtile::cuda {
namespace {

class JitSearch : public JitFolder {
 protected:
  /// A file that looks like a library by its name alone.
  std::string place(const std::string& name) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    write_all(path(name), name);
    return path(name);
  }
  static NvrtcPlaces nowhere() {
    NvrtcPlaces places;
    places.has_loader_path = false;
    return places;
  }
  static std::vector<std::string> paths_of(const NvrtcPlaces& places) {
    std::vector<std::string> paths;
    for (const NvrtcCandidate& candidate : find_nvrtc_candidates(places)) {
      paths.push_back(candidate.path);
    }
    return paths;
  }
};

TEST_F(JitSearch, ToolkitsAndPythonPackages) {
  const std::string toolkit = place("cuda/lib64/libnvrtc.so.12");
  const std::string other_toolkit = place("old/targets/x86_64-linux/lib/libnvrtc.so.12.4.99");
  const std::string wheel_12 =
      place("venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
  const std::string wheel_13 =
      place("venv/lib/python3.12/dist-packages/nvidia/cu13/lib/libnvrtc.so.13");
  NvrtcPlaces places = nowhere();
  places.cuda_homes = {path("cuda"), path("old"), path("missing")};
  places.python_prefixes = {path("venv"), path("venv"), path("missing")};
  std::vector<std::string> found = paths_of(places);
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[0], wheel_13) << "the highest major version is the first";
  std::sort(found.begin(), found.end());
  std::vector<std::string> expected = {toolkit, other_toolkit, wheel_12, wheel_13};
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(found, expected);
}

TEST_F(JitSearch, WhatIsLoadedShowsWhereItsPackagesAre) {
  const std::string wheel = place("p/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
  const std::string loaded = place("elsewhere/libnvrtc.so.13");
  NvrtcPlaces places = nowhere();
  places.loaded_libraries = {path("p/site-packages/torch/lib/libtorch_cuda.so"), loaded,
                             "/usr/lib/libc.so.6"};
  EXPECT_EQ(paths_of(places), (std::vector<std::string>{loaded, wheel}));
}

TEST_F(JitSearch, OtherFilesAndOldVersionsDoNotCount) {
  place("cuda/lib64/libnvrtc-builtins.so.13.0");
  place("cuda/lib64/libnvrtc.alt.so.13");
  place("cuda/lib64/libnvrtc.so");
  place("cuda/lib64/libnvrtc.so.11.2");
  place("cuda/lib64/libnvrtc_static.a");
  std::filesystem::create_symlink(path("gone"), path("cuda/lib64/libnvrtc.so.14"));
  const std::string real = place("cuda/lib64/libnvrtc.so.13.0.48");
  std::filesystem::create_symlink(real, path("cuda/lib64/libnvrtc.so.13"));
  NvrtcPlaces places = nowhere();
  places.cuda_homes = {path("cuda")};
  const auto found = find_nvrtc_candidates(places);
  ASSERT_EQ(found.size(), 1u) << "two names of one file are one candidate";
  EXPECT_EQ(found[0].major, 13);
}

TEST_F(JitSearch, ExplicitPathIsTheOnlyOne) {
  place("cuda/lib64/libnvrtc.so.13");
  const std::string mine = place("mine/libnvrtc.so.12");
  NvrtcPlaces places = nowhere();
  places.cuda_homes = {path("cuda")};
  places.explicit_path = mine;
  EXPECT_EQ(paths_of(places), std::vector<std::string>{mine});
  places.explicit_path = path("mine");
  EXPECT_EQ(paths_of(places), std::vector<std::string>{mine});
  places.explicit_path = path("mine/renamed.so");
  EXPECT_EQ(paths_of(places), std::vector<std::string>{path("mine/renamed.so")});
}

TEST_F(JitSearch, WhatIsNoLibraryIsPassedOverAndTold) {
  const std::string text = place("a/libnvrtc.so.13");
  NvrtcPlaces places = nowhere();
  places.explicit_path = text;
  std::string fault;
  EXPECT_EQ(Nvrtc::open_newest(find_nvrtc_candidates(places), 1000, fault), nullptr);
  EXPECT_NE(fault.find(text), std::string::npos) << fault;
  EXPECT_EQ(Nvrtc::open_newest({{"libc.so.6", 0}}, 1000, fault), nullptr);
  fault.clear();
  EXPECT_EQ(Nvrtc::open_newest({{"/usr/lib/x86_64-linux-gnu/libm.so.6", 0}}, 1000, fault), nullptr);
  EXPECT_NE(fault.find("libm.so.6"), std::string::npos) << fault;
}

TEST_F(JitSearch, TheDriverLimitsTheVersion) {
  if (Nvrtc::get() == nullptr) GTEST_SKIP() << Nvrtc::fault();
  const std::string path = Nvrtc::get()->path();
  const int major = Nvrtc::get()->version() / 1000;
  const std::string broken = place("b/libnvrtc.so." + std::to_string(major));
  std::string fault;
  const auto found = Nvrtc::open_newest({{broken, major}, {path, major}}, major, fault);
  ASSERT_NE(found, nullptr) << "a broken one does not hide a good one";
  EXPECT_EQ(found->version(), Nvrtc::get()->version());
  EXPECT_NE(fault.find(broken), std::string::npos);
  fault.clear();
  EXPECT_EQ(Nvrtc::open_newest({{path, major}}, major - 1, fault), nullptr);
  EXPECT_NE(fault.find("newer than the driver"), std::string::npos);
  EXPECT_EQ(Nvrtc::open_newest({{path, 0}}, major - 1, fault), nullptr)
      << "a name does not hide the version";
}

}  // namespace
}  // namespace flashtile::cuda
