// SPDX-License-Identifier: Apache-2.0
//
// What the environment says about compilers, caches and packs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "core/env.hpp"
#include "flashtile/error.hpp"

namespace flashtile {
namespace {

/// Sets variables (null: takes them away) as long as it lives.
class Variables {
 public:
  using Values = std::vector<std::pair<const char*, const char*>>;
  explicit Variables(const Values& values) {
    for (const auto& [name, value] : values) {
      const char* before = std::getenv(name);
      before_.emplace_back(name, before == nullptr ? std::string() : before);
      was_set_.push_back(before != nullptr);
      set(name, value);
    }
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;
  ~Variables() {
    for (size_t i = 0; i < before_.size(); ++i) {
      set(before_[i].first, was_set_[i] ? before_[i].second.c_str() : nullptr);
    }
  }

 private:
  static void set(const char* name, const char* value) {
    if (value == nullptr) {
      ::unsetenv(name);
    } else {
      ::setenv(name, value, 1);
    }
  }
  std::vector<std::pair<const char*, std::string>> before_;
  std::vector<bool> was_set_;
};

TEST(JitEnv, CacheFolderIsTheFirstThatIsNamed) {
  const auto folder = [](const char* own, const char* xdg, const char* home) {
    const Variables variables(
        {{"FLASHTILE_CACHE_DIR", own}, {"XDG_CACHE_HOME", xdg}, {"HOME", home}});
    return env_cache_dir();
  };
  EXPECT_EQ(folder("/a", "/b", "/c"), "/a");
  EXPECT_EQ(folder("", "/b", "/c"), "/b/flashtile");
  EXPECT_EQ(folder(nullptr, "relative", "/c"), "/c/.cache/flashtile");
  EXPECT_EQ(folder(nullptr, nullptr, "/c"), "/c/.cache/flashtile");
  EXPECT_EQ(folder(nullptr, nullptr, nullptr), "");
}

TEST(JitEnv, CacheSizeIsANumberOrAnError) {
  const auto size = [](const char* text) {
    const Variables variables(Variables::Values{{"FLASHTILE_CACHE_MB", text}});
    return env_cache_mb();
  };
  EXPECT_EQ(size(nullptr), 256);
  EXPECT_EQ(size("0"), 0);
  EXPECT_EQ(size("1000"), 1000);
  EXPECT_EQ(size(""), 256);
  for (const std::string text : {"-1", "10 MB", "many", "99999999999999999999", "1.5"}) {
    try {
      size(text.c_str());
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(error.what(), "environment variable FLASHTILE_CACHE_MB is '" + text +
                                  "', expected a whole number from 0 to 1073741823");
    }
  }
}

TEST(JitEnv, ListsAndPrefixes) {
  const Variables variables({{"FLASHTILE_PACK", ":/a/b::c:"},
                             {"FLASHTILE_NVRTC", "/n"},
                             {"CUDA_HOME", nullptr},
                             {"CUDA_PATH", "/cuda"},
                             {"VIRTUAL_ENV", "/venv"},
                             {"CONDA_PREFIX", ""},
                             {"PATH", "/x/bin:/y/tools:/z/bin"},
                             {"HOME", "/home/me"}});
  using List = std::vector<std::string>;
  EXPECT_EQ(env_kernel_packs(), (List{"/a/b", "c"}));
  EXPECT_EQ(env_nvrtc(), "/n");
  EXPECT_EQ(env_cuda_homes(), List{"/cuda"});
  EXPECT_EQ(env_python_prefixes(), (List{"/venv", "/x", "/z", "/home/me/.local"}));
}

}  // namespace
}  // namespace flashtile
