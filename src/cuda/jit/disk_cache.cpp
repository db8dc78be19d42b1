// SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/disk_cache.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "cuda/jit/kernel_file.hpp"

namespace flashtile::cuda {
namespace {

constexpr std::string_view kEntrySuffix = ".kernel";
constexpr std::string_view kLockSuffix = ".lock";
constexpr std::string_view kSourceSuffix = ".cu";
constexpr std::string_view kUnfinishedSuffix = ".new";
constexpr int64_t kMaxEntryBytes = int64_t{256} << 20;
constexpr int64_t kUnfinishedSeconds = 600;
constexpr auto kPatience = std::chrono::seconds(60);

std::string file_name(const Digest& key, std::string_view suffix) {
  return to_hex(key).append(suffix);
}

struct CacheFile {
  std::string name;
  int64_t bytes = 0;
  int64_t nanoseconds = 0;  ///< when it was last used, since 1970
};

std::vector<CacheFile> list_files(const FileHandle& folder) {
  std::vector<CacheFile> files;
  const int descriptor = ::openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* stream = descriptor < 0 ? nullptr : ::fdopendir(descriptor);
  if (stream == nullptr) {
    if (descriptor >= 0) ::close(descriptor);
    return files;
  }
  while (const dirent* entry = ::readdir(stream)) {
    const std::string name = entry->d_name;
    struct stat status = {};
    if (::fstatat(folder.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(status.st_mode)) {
      continue;
    }
    files.push_back({name, int64_t{status.st_size},
                     int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec});
  }
  ::closedir(stream);
  return files;
}

}  // namespace

DiskCache::DiskCache(std::string folder, int64_t max_bytes)
    : folder_(max_bytes > 0 ? std::move(folder) : std::string()), max_bytes_(max_bytes) {}

FileHandle DiskCache::open_folder(bool may_create, std::string& fault) {
  if (folder_.empty()) {
    fault = "there is no folder for it";
    return FileHandle();
  }
  // Opened anew each time, which is rare: the folder may be taken away and come back.
  return open_private_folder(folder_, may_create, fault);
}

std::string DiskCache::fault() {
  std::string fault;
  if (!folder_.empty() && ::access(folder_.c_str(), F_OK) != 0) return {};
  open_folder(/*may_create=*/false, fault);
  return fault;
}

std::optional<CompiledKernel> DiskCache::load(const Digest& key) {
  std::string fault;
  const FileHandle folder = open_folder(/*may_create=*/false, fault);
  if (!folder) return std::nullopt;
  const std::string name = file_name(key, kEntrySuffix);
  const std::optional<std::string> bytes = read_file(folder, name, kMaxEntryBytes);
  if (!bytes) return std::nullopt;
  std::optional<CompiledKernel> kernel = read_kernel_file(*bytes, key);
  if (kernel) {
    touch(folder, name);
  } else {
    ::unlinkat(folder.get(), name.c_str(), 0);
  }
  return kernel;
}

bool DiskCache::store(const Digest& key, const CompiledKernel& kernel) {
  std::string fault;
  const FileHandle folder = open_folder(/*may_create=*/true, fault);
  if (!folder) return false;
  if (!write_file(folder, file_name(key, kEntrySuffix), write_kernel_file(key, kernel))) {
    return false;
  }
  evict(folder);
  return true;
}

FileLock DiskCache::lock(const Digest& key) {
  std::string fault;
  const FileHandle folder = open_folder(/*may_create=*/true, fault);
  if (!folder) return FileLock();
  return FileLock(folder, file_name(key, kLockSuffix), kPatience);
}

std::string DiskCache::keep_source(const Digest& key, std::string_view text) {
  std::string fault;
  const FileHandle folder = open_folder(/*may_create=*/true, fault);
  const std::string name = file_name(key, kSourceSuffix);
  if (!folder || !write_file(folder, name, text)) return {};
  return folder_ + "/" + name;
}

void DiskCache::evict(const FileHandle& folder) {
  std::vector<CacheFile> files = list_files(folder);
  timespec now = {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  int64_t total = 0;
  for (CacheFile& file : files) {
    const int64_t age_seconds = int64_t{now.tv_sec} - file.nanoseconds / 1'000'000'000;
    if (file.name.ends_with(kUnfinishedSuffix) && age_seconds > kUnfinishedSeconds) {
      ::unlinkat(folder.get(), file.name.c_str(), 0);  // its writer was killed
      file.bytes = 0;
    }
    total += file.bytes;
  }
  if (total <= max_bytes_) return;
  // A little more than needed, so that the next entries find room.
  const int64_t goal = max_bytes_ - max_bytes_ / 10;
  std::sort(files.begin(), files.end(),
            [](const CacheFile& a, const CacheFile& b) { return a.nanoseconds < b.nanoseconds; });
  for (const CacheFile& file : files) {
    if (total <= goal) return;
    if (!file.name.ends_with(kEntrySuffix) && !file.name.ends_with(kSourceSuffix)) continue;
    if (::unlinkat(folder.get(), file.name.c_str(), 0) == 0) total -= file.bytes;
  }
}

DiskCache::Summary DiskCache::summary() {
  std::string fault;
  const FileHandle folder = open_folder(/*may_create=*/false, fault);
  Summary summary;
  if (!folder) return summary;
  for (const CacheFile& file : list_files(folder)) {
    if (file.name.ends_with(kEntrySuffix)) ++summary.num_kernels;
    summary.bytes += file.bytes;
  }
  return summary;
}

}  // namespace flashtile::cuda
