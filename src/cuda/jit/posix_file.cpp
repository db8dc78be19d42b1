// SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/posix_file.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>

namespace flashtile::cuda {
namespace {

std::string error_text() { return std::generic_category().message(errno); }

/// A write beyond the process's limit of file sizes raises a signal that ends the process. Here it
/// is an error of the write.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() {
    sigset_t pending;
    ::sigemptyset(&set_);
    ::sigaddset(&set_, SIGXFSZ);
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGXFSZ) == 1;
    ::pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;
  ~NoFileSizeSignal() {
    const timespec now = {0, 0};
    if (!was_pending_) ::sigtimedwait(&set_, nullptr, &now);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t set_;
  sigset_t before_;
  bool was_pending_ = false;
};

bool write_all(int descriptor, std::string_view bytes) {
  const NoFileSizeSignal guard;
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

/// A name that no other process and no other thread uses.
std::string name_beside(const std::string& name) {
  static std::atomic<uint32_t> counter{0};
  return name + "." + std::to_string(::getpid()) + "-" + std::to_string(counter++) + ".new";
}

/// True when the name still stands for the open file.
bool is_named(const FileHandle& folder, const std::string& name, const FileHandle& file) {
  struct stat open = {};
  struct stat named = {};
  return ::fstat(file.get(), &open) == 0 &&
         ::fstatat(folder.get(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

void make_folders(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    ::mkdir(path.substr(0, end).c_str(), 0700);
    if (end == std::string::npos) return;
  }
}

/// Nothing when only this user, or root, may put files into the folder.
std::string fault_of_owner(const struct stat& status) {
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    return "it belongs to user " + std::to_string(status.st_uid) + ", not to " +
           std::to_string(::geteuid());
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "others may write to it";
  return {};
}

}  // namespace

FileHandle::~FileHandle() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

FileLock::FileLock(const FileHandle& folder, const std::string& name,
                   std::chrono::milliseconds patience)
    : name_(name) {
  constexpr auto kPause = std::chrono::milliseconds(3);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  folder_ = FileHandle(::fcntl(folder.get(), F_DUPFD_CLOEXEC, 0));
  while (folder_) {
    FileHandle file(
        ::openat(folder_.get(), name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) return;
    if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      // The holder before may have taken the file away: then others lock another one.
      if (!is_named(folder_, name, file)) continue;
      file_ = std::move(file);
      return;
    }
    const bool is_held = errno == EWOULDBLOCK || errno == EINTR;
    if (!is_held || std::chrono::steady_clock::now() >= deadline) return;
    // Opened anew each time: a forked child of the holder may keep the old file locked for ever.
    std::this_thread::sleep_for(kPause);
  }
}

FileLock::~FileLock() {
  if (file_) ::unlinkat(folder_.get(), name_.c_str(), 0);
}

FileHandle open_private_folder(const std::string& path, bool may_create, std::string& fault) {
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  FileHandle folder(::open(path.c_str(), kFlags));
  if (!folder && errno == ENOENT && may_create) {
    make_folders(path);
    folder = FileHandle(::open(path.c_str(), kFlags));
  }
  if (!folder) {
    fault = path + ": " + error_text();
    return folder;
  }
  struct stat status = {};
  fault = ::fstat(folder.get(), &status) == 0 ? fault_of_owner(status) : error_text();
  if (fault.empty()) return folder;
  fault = path + ": " + fault;
  return FileHandle();
}

std::optional<std::string> read_part(const FileHandle& file, uint64_t offset, uint64_t bytes) {
  std::string content(bytes, '\0');
  size_t done = 0;
  while (done < bytes) {
    const ssize_t count =
        ::pread(file.get(), content.data() + done, bytes - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return std::nullopt;
    done += static_cast<size_t>(count);
  }
  return content;
}

std::optional<std::string> read_file(const FileHandle& folder, const std::string& name,
                                     int64_t max_bytes) {
  // A pipe in the place of a file must not stop us.
  const FileHandle file(
      ::openat(folder.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat status = {};
  struct stat folder_status = {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      ::fstat(folder.get(), &folder_status) != 0 || status.st_uid != folder_status.st_uid ||
      status.st_size > max_bytes) {
    return std::nullopt;
  }
  return read_part(file, 0, static_cast<uint64_t>(status.st_size));
}

bool write_file(const FileHandle& folder, const std::string& name, std::string_view bytes,
                unsigned int mode) {
  const std::string beside = name_beside(name);
  {
    const FileHandle file(::openat(folder.get(), beside.c_str(),
                                   O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
    if (!file) return false;
    if (!write_all(file.get(), bytes)) {
      ::unlinkat(folder.get(), beside.c_str(), 0);
      return false;
    }
  }
  if (::renameat(folder.get(), beside.c_str(), folder.get(), name.c_str()) == 0) return true;
  ::unlinkat(folder.get(), beside.c_str(), 0);
  return false;
}

void touch(const FileHandle& folder, const std::string& name) {
  ::utimensat(folder.get(), name.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
}

}  // namespace flashtile::cuda
