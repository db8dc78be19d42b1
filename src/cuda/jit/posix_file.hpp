// SPDX-License-Identifier: Apache-2.0
//
// Files by their descriptors: what the cache needs to be safe among processes. Nothing throws.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace flashtile::cuda {

/// Owns a file descriptor.
class FileHandle {
 public:
  explicit FileHandle(int descriptor = -1) : descriptor_(descriptor) {}
  FileHandle(FileHandle&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileHandle& operator=(FileHandle&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~FileHandle();

  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

/// A lock among processes and threads, held through a file that is taken away at the end. A killed
/// holder loses it.
class FileLock {
 public:
  FileLock() = default;
  /// Waits for the lock on `name` in a folder, at most for `patience`.
  FileLock(const FileHandle& folder, const std::string& name, std::chrono::milliseconds patience);
  FileLock(FileLock&& other) noexcept = default;
  ~FileLock();

  explicit operator bool() const { return static_cast<bool>(file_); }

 private:
  FileHandle folder_;
  FileHandle file_;
  std::string name_;
};

/// A folder, opened; each missing part of the path is made (for this user alone) where `may_create`
/// says so. `fault` says what is wrong: it cannot be opened, or others than this user and root may
/// write to it.
FileHandle open_private_folder(const std::string& path, bool may_create, std::string& fault);

/// The content of a regular file that belongs to the owner of `folder`; nothing for any other.
std::optional<std::string> read_file(const FileHandle& folder, const std::string& name,
                                     int64_t max_bytes);

/// Part of an open file; nothing where it is shorter.
std::optional<std::string> read_part(const FileHandle& file, uint64_t offset, uint64_t bytes);

/// Writes a file beside `name` and renames it: others see all of it or nothing. False, and nothing
/// left behind, where that fails (a full disk, a limit, no permission). `mode` as for open().
bool write_file(const FileHandle& folder, const std::string& name, std::string_view bytes,
                unsigned int mode = 0600);

/// Sets a file's times to now.
void touch(const FileHandle& folder, const std::string& name);

}  // namespace flashtile::cuda
