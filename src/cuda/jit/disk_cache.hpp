// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cuda/jit/compiled_kernel.hpp"
#include "cuda/jit/posix_file.hpp"
#include "cuda/jit/sha256.hpp"

namespace flashtile::cuda {

/// Compiled kernels in a folder that processes share. Machine code is run as it is found there, so
/// only a folder counts that nobody but this user (or root) can write to. Whatever goes wrong is no
/// error: a kernel is then compiled once more. All functions may be called from any thread.
class DiskCache {
 public:
  /// `folder` empty or `max_bytes` 0: no cache.
  DiskCache(std::string folder, int64_t max_bytes);

  /// The entry; nothing where there is none or it is damaged (then it is taken away).
  std::optional<CompiledKernel> load(const Digest& key);

  /// Writes the entry beside its place and renames it into it, and evicts what was used longest ago
  /// if the folder has become too large. Makes the folder where it is missing. False where nothing
  /// was written.
  bool store(const Digest& key, const CompiledKernel& kernel);

  /// Held while a kernel is compiled, so that other processes wait and then load it. Empty where
  /// the folder cannot be written to, or somebody has held it for an unlikely time.
  FileLock lock(const Digest& key);

  /// Puts the text of a program that does not compile into the folder; gives its path, or nothing.
  std::string keep_source(const Digest& key, std::string_view text);

  struct Summary {
    int64_t num_kernels = 0;
    int64_t bytes = 0;
  };
  Summary summary();

  const std::string& folder() const { return folder_; }
  int64_t max_bytes() const { return max_bytes_; }
  /// Why kernels are kept in memory only; empty where the folder serves or can still be made.
  std::string fault();

 private:
  FileHandle open_folder(bool may_create, std::string& fault);
  void evict(const FileHandle& folder);

  std::string folder_;
  int64_t max_bytes_ = 0;
};

}  // namespace flashtile::cuda
