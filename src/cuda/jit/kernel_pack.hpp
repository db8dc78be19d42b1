// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/jit/compiled_kernel.hpp"
#include "cuda/jit/posix_file.hpp"
#include "cuda/jit/sha256.hpp"

namespace flashtile::cuda {

/// A file of many compiled kernels, for machines without NVRTC. docs/cuda.md gives the format.
class KernelPack {
 public:
  /// Reads the index; kernels are read when they are asked for. Throws Error(kIo) for a file that
  /// cannot be read, is no pack, is damaged or cut short.
  explicit KernelPack(const std::string& path);

  /// Nothing where it is not in the pack, or its entry is damaged.
  std::optional<CompiledKernel> find(const Digest& key) const;

  const std::string& path() const { return path_; }
  size_t num_kernels() const { return index_.size(); }
  /// The keys, sorted.
  std::vector<Digest> keys() const;
  /// False for a pack of a library with other device text: none of its kernels will be found.
  bool is_for_this_library() const { return is_for_this_library_; }

 private:
  struct Place {
    Digest key;
    uint64_t offset;
    uint64_t bytes;
  };

  std::string path_;
  FileHandle file_;
  std::vector<Place> index_;
  bool is_for_this_library_ = false;
};

/// Writes a pack beside `path` and renames it. Throws Error(kIo) where that fails, and leaves
/// nothing behind.
void write_kernel_pack(const std::string& path,
                       std::vector<std::pair<Digest, CompiledKernel>> kernels);

}  // namespace flashtile::cuda
