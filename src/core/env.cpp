// SPDX-License-Identifier: Apache-2.0
#include "core/env.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <system_error>

#include "core/op_spec.hpp"
#include "core/registry.hpp"
#include "flashtile/error.hpp"

namespace flashtile {
namespace {

std::string read(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

[[noreturn]] void fail(const char* name, const std::string& found, const std::string& expected) {
  throw Error(ErrorCode::kInvalidArgument, "environment variable " + std::string(name) + " is '" +
                                               found + "', expected " + expected);
}

/// A whole number; `fallback` when the variable is not set or empty.
int64_t read_number(const char* name, int64_t low, int64_t high, int64_t fallback) {
  const std::string text = read(name);
  if (text.empty()) return fallback;
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || value < low || value > high) {
    fail(name, text, "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return value;
}

/// "a, b or c".
std::string choice_text(std::span<const std::string_view> choices) {
  std::string text;
  for (size_t n = 0; n < choices.size(); ++n) {
    if (n > 0) text += n + 1 == choices.size() ? " or " : ", ";
    text += choices[n];
  }
  return text;
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

void check_env_implementation(std::string_view asked) {
  std::vector<std::string> endings;
  for (const OpSpec* op : all_ops()) {
    for (const DeviceType device : {DeviceType::kCpu, DeviceType::kCuda}) {
      for (const std::string& name : op->implementations(device)) {
        if (names_implementation(asked, op->name, name)) return;
        std::string ending = name.substr(std::min(op->name.size() + 1, name.size()));
        if (std::find(endings.begin(), endings.end(), ending) == endings.end()) {
          endings.push_back(std::move(ending));
        }
      }
    }
  }
  const std::vector<std::string_view> choices(endings.begin(), endings.end());
  fail("FLASHTILE_IMPL", std::string(asked),
       choice_text(choices) + ", or an op's name with one behind it, as attention_fwd_reference");
}

int env_num_threads() { return static_cast<int>(read_number("FLASHTILE_NUM_THREADS", 1, 4095, 0)); }

std::string env_max_isa(std::span<const std::string_view> known) {
  const std::string text = read("FLASHTILE_MAX_ISA");
  if (!text.empty() && std::find(known.begin(), known.end(), text) == known.end()) {
    fail("FLASHTILE_MAX_ISA", text, choice_text(known));
  }
  return text;
}

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

int64_t env_cache_mb() { return read_number("FLASHTILE_CACHE_MB", 0, (int64_t{1} << 30) - 1, 256); }

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
