// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cuda/jit/compiled_kernel.hpp"
#include "cuda/jit/sha256.hpp"

namespace flashtile::cuda {

/// A compiled kernel as bytes: an entry of the disk cache and of kernel packs. docs/cuda.md gives
/// the format. It holds its key and a digest of itself, so that an entry that is damaged, cut
/// short, from another version or for another kernel is known for that.
std::string write_kernel_file(const Digest& key, const CompiledKernel& kernel);

/// Nothing for bytes that are not an entry for this key.
std::optional<CompiledKernel> read_kernel_file(std::string_view bytes, const Digest& key);

/// As a text of its bytes.
inline std::string_view as_text(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace flashtile::cuda
