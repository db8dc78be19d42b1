// SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/kernel_pack.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "cuda/jit/bytes.hpp"
#include "cuda/jit/device_text.hpp"
#include "cuda/jit/kernel_file.hpp"
#include "flashtile/error.hpp"

namespace flashtile::cuda {
namespace {

constexpr std::string_view kPackMagic = "FTKPACK\n";
constexpr uint32_t kPackFormat = 1;
// magic, version, number of kernels, digest of the device text (hexadecimal), digest of the index
constexpr uint64_t kHeaderBytes = 8 + 4 + 4 + 64 + 32;
constexpr uint64_t kPlaceBytes = 32 + 8 + 8;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::kIo, "kernel pack " + path + ": " + what);
}

Digest as_digest(std::string_view bytes) {
  Digest digest{};
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

}  // namespace

KernelPack::KernelPack(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  struct stat status = {};
  if (!file_ || ::fstat(file_.get(), &status) != 0) {
    fail(path, "cannot be opened: " + std::generic_category().message(errno));
  }
  if (!S_ISREG(status.st_mode)) fail(path, "is no file");
  const auto file_bytes = static_cast<uint64_t>(status.st_size);
  const std::optional<std::string> header = read_part(file_, 0, kHeaderBytes);
  if (!header || !header->starts_with(kPackMagic)) fail(path, "is not a kernel pack");
  ByteReader reader(std::string_view(*header).substr(kPackMagic.size()));
  const auto version = reader.number<uint32_t>();
  if (version != kPackFormat) {
    fail(path,
         "has format " + std::to_string(version) + ", expected " + std::to_string(kPackFormat));
  }
  const uint64_t count = reader.number<uint32_t>();
  is_for_this_library_ = reader.text(64) == device_headers_digest();
  const std::string_view index_digest = reader.text(sizeof(Digest));
  if (count * kPlaceBytes > file_bytes - kHeaderBytes) fail(path, "is cut short");
  const std::optional<std::string> index = read_part(file_, kHeaderBytes, count * kPlaceBytes);
  if (!index) fail(path, "is cut short");
  if (as_text(sha256(*index)) != index_digest) fail(path, "is damaged: its index has changed");
  ByteReader places(*index);
  for (uint64_t i = 0; i < count; ++i) {
    const Digest key = as_digest(places.text(sizeof(Digest)));
    const auto offset = places.number<uint64_t>();
    const auto bytes = places.number<uint64_t>();
    if (offset > file_bytes || bytes > file_bytes - offset) fail(path, "is cut short");
    index_.push_back({key, offset, bytes});
  }
}

std::optional<CompiledKernel> KernelPack::find(const Digest& key) const {
  const auto place =
      std::lower_bound(index_.begin(), index_.end(), key,
                       [](const Place& a, const Digest& wanted) { return a.key < wanted; });
  if (place == index_.end() || place->key != key) return std::nullopt;
  const std::optional<std::string> bytes = read_part(file_, place->offset, place->bytes);
  return bytes ? read_kernel_file(*bytes, key) : std::nullopt;
}

std::vector<Digest> KernelPack::keys() const {
  std::vector<Digest> keys;
  for (const Place& place : index_) keys.push_back(place.key);
  return keys;
}

void write_kernel_pack(const std::string& path,
                       std::vector<std::pair<Digest, CompiledKernel>> kernels) {
  std::sort(kernels.begin(), kernels.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  const auto end = std::unique(kernels.begin(), kernels.end(),
                               [](const auto& a, const auto& b) { return a.first == b.first; });
  kernels.erase(end, kernels.end());
  std::string index;
  std::string content;
  for (const auto& [key, kernel] : kernels) {
    const std::string bytes = write_kernel_file(key, kernel);
    index += as_text(key);
    append_number(index, kHeaderBytes + kernels.size() * kPlaceBytes + content.size());
    append_number(index, uint64_t{bytes.size()});
    content += bytes;
  }
  std::string header(kPackMagic);
  append_number(header, kPackFormat);
  append_number(header, static_cast<uint32_t>(kernels.size()));
  header += device_headers_digest();
  header += as_text(sha256(index));

  const std::filesystem::path file(path);
  const std::string parent = file.has_parent_path() ? file.parent_path().string() : ".";
  const FileHandle folder(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string name = file.filename().string();
  errno = 0;
  if (!folder || name.empty() || !write_file(folder, name, header + index + content, 0666)) {
    fail(path,
         "cannot be written: " + std::generic_category().message(errno == 0 ? EINVAL : errno));
  }
}

}  // namespace flashtile::cuda
