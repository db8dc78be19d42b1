// SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/nvrtc_search.hpp"

#include <link.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>

#include "core/env.hpp"

namespace flashtile::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStem = "libnvrtc.so.";
// What an older one is given, it does not understand: no C++20 before 12.
constexpr int kOldestMajor = 12;
constexpr int kNewestMajor = 20;

/// The major version of a library's file name; 0 where it is not NVRTC's.
int major_of(std::string_view file_name) {
  if (!file_name.starts_with(kStem)) return 0;
  int major = 0;
  for (char c : file_name.substr(kStem.size())) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) break;
    major = std::min(10 * major + (c - '0'), 1000);
  }
  return major;
}

/// What a folder holds; nothing where it cannot be read.
std::vector<fs::path> list_folder(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  fs::directory_iterator it(folder, fs::directory_options::skip_permission_denied, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    paths.push_back(it->path());
  }
  return paths;
}

class Collector {
 public:
  void add_file(const fs::path& path) {
    const int major = major_of(path.filename().string());
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    if (error || major < kOldestMajor || !seen_.insert(real.string()).second) return;
    candidates_.push_back({path.string(), major});
  }

  void add_folder(const fs::path& folder) {
    for (const fs::path& path : list_folder(folder)) add_file(path);
  }

  /// What pip's packages put below site-packages: nvidia/cuda_nvrtc/lib, nvidia/cu13/lib.
  void add_site_packages(const fs::path& site_packages) {
    if (!folders_.insert(site_packages.string()).second) return;
    for (const fs::path& package : list_folder(site_packages / "nvidia")) {
      const std::string name = package.filename().string();
      if (name == "cuda_nvrtc" || name.starts_with("cu1") || name.starts_with("cu2")) {
        add_folder(package / "lib");
      }
    }
  }

  void add_python_prefix(const fs::path& prefix) {
    for (const fs::path& python : list_folder(prefix / "lib")) {
      if (!python.filename().string().starts_with("python3")) continue;
      add_site_packages(python / "site-packages");
      add_site_packages(python / "dist-packages");
    }
  }

  void add_name(const std::string& name) { candidates_.push_back({name, major_of(name)}); }

  std::vector<NvrtcCandidate> sorted() {
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const auto& a, const auto& b) { return a.major > b.major; });
    return std::move(candidates_);
  }

 private:
  std::set<std::string> seen_;     ///< real paths of files
  std::set<std::string> folders_;  ///< site-packages that were looked at
  std::vector<NvrtcCandidate> candidates_;
};

/// "/x/lib/python3.12/site-packages" for a library below it; empty for others.
std::string site_packages_of(std::string_view library) {
  for (std::string_view folder : {"/site-packages/", "/dist-packages/"}) {
    const size_t at = library.find(folder);
    if (at != std::string_view::npos) return std::string(library.substr(0, at + folder.size() - 1));
  }
  return {};
}

std::vector<std::string> loaded_libraries() {
  std::vector<std::string> paths;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* list) {
        if (info->dlpi_name != nullptr && info->dlpi_name[0] == '/') {
          static_cast<std::vector<std::string>*>(list)->emplace_back(info->dlpi_name);
        }
        return 0;
      },
      &paths);
  return paths;
}

}  // namespace

NvrtcPlaces nvrtc_places() {
  NvrtcPlaces places;
  places.explicit_path = env_nvrtc();
  places.loaded_libraries = loaded_libraries();
  places.cuda_homes = env_cuda_homes();
  places.cuda_homes.emplace_back("/usr/local/cuda");
  places.cuda_homes.emplace_back("/opt/cuda");
  places.python_prefixes = env_python_prefixes();
  // The interpreter that this process is.
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error && program.parent_path().filename() == "bin") {
    places.python_prefixes.push_back(program.parent_path().parent_path().string());
  }
  places.python_prefixes.emplace_back("/usr/local");
  places.python_prefixes.emplace_back("/usr");
  return places;
}

std::vector<NvrtcCandidate> find_nvrtc_candidates(const NvrtcPlaces& places) {
  Collector found;
  if (!places.explicit_path.empty()) {
    std::error_code error;
    if (fs::is_directory(places.explicit_path, error)) {
      found.add_folder(places.explicit_path);
      return found.sorted();
    }
    // Whatever it is called: who names a file means it.
    return {{places.explicit_path, major_of(fs::path(places.explicit_path).filename().string())}};
  }
  for (const std::string& library : places.loaded_libraries) found.add_file(library);
  if (places.has_loader_path) {
    for (int major = kNewestMajor; major >= kOldestMajor; --major) {
      found.add_name(std::string(kStem) + std::to_string(major));
    }
  }
  for (const std::string& home : places.cuda_homes) {
    for (const char* folder :
         {"lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"}) {
      found.add_folder(fs::path(home) / folder);
    }
  }
  for (const std::string& library : places.loaded_libraries) {
    const std::string site_packages = site_packages_of(library);
    if (!site_packages.empty()) found.add_site_packages(site_packages);
  }
  for (const std::string& prefix : places.python_prefixes) found.add_python_prefix(prefix);
  return found.sorted();
}

}  // namespace flashtile::cuda
