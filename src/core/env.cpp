// SPDX-License-Identifier: Apache-2.0
#include "core/env.hpp"

#include <cstdlib>

namespace flashtile {
namespace {

std::string read(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

}  // namespace

std::string env_implementation() { return read("FLASHTILE_IMPL"); }

int env_num_threads() {
  const std::string text = read("FLASHTILE_NUM_THREADS");
  const long value = std::strtol(text.c_str(), nullptr, 10);
  return value > 0 && value < 4096 ? static_cast<int>(value) : 0;
}

std::string env_max_isa() { return read("FLASHTILE_MAX_ISA"); }

}  // namespace flashtile
