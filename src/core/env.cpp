// SPDX-License-Identifier: Apache-2.0
#include "core/env.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <system_error>

namespace flashtile {
namespace {

std::string read(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

/// The parts of a list with colons, without empty ones.
std::vector<std::string> read_list(const char* name) {
  std::vector<std::string> parts;
  const std::string text = read(name);
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// The variables of the list that are set.
template <size_t count>
std::vector<std::string> read_all(const char* const (&names)[count]) {
  std::vector<std::string> values;
  for (const char* name : names) {
    std::string value = read(name);
    if (!value.empty()) values.push_back(std::move(value));
  }
  return values;
}

}  // namespace

std::string env_implementation() { return read("FLASHTILE_IMPL"); }

int env_num_threads() {
  const std::string text = read("FLASHTILE_NUM_THREADS");
  const long value = std::strtol(text.c_str(), nullptr, 10);
  return value > 0 && value < 4096 ? static_cast<int>(value) : 0;
}

std::string env_max_isa() { return read("FLASHTILE_MAX_ISA"); }

std::string env_nvrtc() { return read("FLASHTILE_NVRTC"); }

std::string env_cache_dir() {
  const std::string own = read("FLASHTILE_CACHE_DIR");
  if (!own.empty()) return own;
  const std::string cache_home = read("XDG_CACHE_HOME");
  // Its specification says that a relative path does not count.
  if (cache_home.starts_with('/')) return cache_home + "/flashtile";
  const std::string home = read("HOME");
  return home.empty() ? std::string() : home + "/.cache/flashtile";
}

int64_t env_cache_mb() {
  constexpr int64_t kDefault = 256;
  const std::string text = read("FLASHTILE_CACHE_MB");
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool is_number = error == std::errc{} && stop == end && value >= 0 && value < (1 << 30);
  return is_number ? value : kDefault;
}

std::vector<std::string> env_kernel_packs() { return read_list("FLASHTILE_PACK"); }

std::vector<std::string> env_cuda_homes() { return read_all({"CUDA_HOME", "CUDA_PATH"}); }

std::vector<std::string> env_python_prefixes() {
  std::vector<std::string> prefixes = read_all({"VIRTUAL_ENV", "CONDA_PREFIX"});
  for (const std::string& folder : read_list("PATH")) {
    if (folder.ends_with("/bin")) prefixes.push_back(folder.substr(0, folder.size() - 4));
  }
  const std::string home = read("HOME");
  if (!home.empty()) prefixes.push_back(home + "/.local");
  return prefixes;
}

}  // namespace flashtile
