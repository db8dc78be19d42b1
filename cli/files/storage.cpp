// SPDX-License-Identifier: Apache-2.0
#include "files/storage.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

namespace flashtile::cli {
namespace {

std::string system_text(const std::string& what) { return what + ": " + std::strerror(errno); }

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  /// Closes now, so that an error which only shows then is seen.
  bool close() {
    const int fd = fd_;
    fd_ = -1;
    return ::close(fd) == 0;
  }

 private:
  int fd_;
};

void write_all(const Descriptor& file, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      throw file_error(path, system_text("cannot be written"));
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

}  // namespace

std::shared_ptr<std::byte[]> allocate_bytes(size_t bytes) {
  constexpr std::align_val_t kAlign{kAlignment};
  void* memory = ::operator new[](bytes == 0 ? 1 : bytes, kAlign, std::nothrow);
  if (memory == nullptr) {
    throw Error(ErrorCode::kOutOfMemory, "cannot allocate " + std::to_string(bytes) + " bytes");
  }
  return {static_cast<std::byte*>(memory), [](std::byte* p) { ::operator delete[](p, kAlign); }};
}

MappedFile map_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) throw file_error(path, system_text("cannot be opened"));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw file_error(path, system_text("cannot be read"));
  if (!S_ISREG(status.st_mode)) throw file_error(path, "is not a regular file");
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) throw file_error(path, "is empty");
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) throw file_error(path, system_text("cannot be read"));
  MappedFile mapped;
  mapped.owner = std::shared_ptr<const std::byte>(
      static_cast<const std::byte*>(address),
      [size](const std::byte* p) { ::munmap(const_cast<std::byte*>(p), size); });
  mapped.bytes = {mapped.owner.get(), size};
  return mapped;
}

void write_file(const std::string& path, std::span<const std::span<const std::byte>> pieces) {
  // Renaming over a device or pipe would replace it by a file, so those are written directly.
  struct stat status {};
  const bool aside = ::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode);
  const std::string target = aside ? path + ".part" + std::to_string(::getpid()) : path;
  Descriptor file(::open(target.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.get() < 0) throw file_error(path, system_text("cannot be created"));
  try {
    for (const std::span<const std::byte> piece : pieces) write_all(file, piece, path);
    if (!file.close()) throw file_error(path, system_text("cannot be written"));
    if (aside && std::rename(target.c_str(), path.c_str()) != 0) {
      throw file_error(path, system_text("cannot be created"));
    }
  } catch (...) {
    if (aside) ::unlink(target.c_str());
    throw;
  }
}

Error file_error(std::string_view name, const std::string& text) {
  return Error(ErrorCode::kIo, std::string(name) + ": " + text);
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kLongest = 80;
  constexpr char kHex[] = "0123456789abcdef";
  std::string result = "'";
  for (const char c : text.substr(0, kLongest)) {
    const auto code = static_cast<unsigned char>(c);
    if (code >= 0x20 && code < 0x7f) {
      result += c;
    } else {
      result += {'\\', 'x', kHex[code >> 4], kHex[code & 15]};
    }
  }
  return result + (text.size() > kLongest ? "...'" : "'");
}

bool contiguous_bytes(DType dtype, std::span<const int64_t> shape, int64_t* bytes) {
  // The strides of an empty tensor are products as well, so a 0 does not excuse the others.
  int64_t extent = dtype_bytes(dtype);
  bool is_empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return false;
    if (size == 0) {
      is_empty = true;
    } else if (__builtin_mul_overflow(extent, size, &extent)) {
      return false;
    }
  }
  *bytes = is_empty ? 0 : extent;
  return true;
}

bool is_contiguous(const TensorView& tensor) {
  int64_t expected = 1;
  for (int d = tensor.ndim - 1; d >= 0; --d) {
    const auto i = static_cast<size_t>(d);
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

void copy_contiguous(const TensorView& tensor, std::byte* target) {
  const int64_t num_elements = tensor.numel();
  if (num_elements == 0) return;
  const auto element = static_cast<size_t>(dtype_bytes(tensor.dtype));
  const auto* source = static_cast<const std::byte*>(tensor.data);
  if (is_contiguous(tensor)) {
    std::memcpy(target, source, static_cast<size_t>(num_elements) * element);
    return;
  }
  std::array<int64_t, TensorView::kMaxDims> index{};
  int64_t offset = 0;
  for (int64_t n = 0; n < num_elements; ++n) {
    std::memcpy(target, source + offset * static_cast<int64_t>(element), element);
    target += element;
    for (int d = tensor.ndim - 1; d >= 0; --d) {
      const auto i = static_cast<size_t>(d);
      offset += tensor.strides[i];
      if (++index[i] < tensor.shape[i]) break;
      offset -= tensor.strides[i] * tensor.shape[i];
      index[i] = 0;
    }
  }
}

}  // namespace flashtile::cli
