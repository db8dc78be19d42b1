// SPDX-License-Identifier: Apache-2.0
#include "files/safetensors.hpp"
#include "files_fuzz.hpp"
#include "flashtile/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    flashtile::cli::touch_all(flashtile::cli::parse_safetensors(bytes, "fuzz"));
  } catch (const flashtile::Error&) {
    // Refusing is fine; anything else that is thrown is a finding.
  }
  return 0;
}
