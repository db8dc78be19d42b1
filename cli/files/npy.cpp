// SPDX-License-Identifier: Apache-2.0
#include "files/npy.hpp"

#include <cstring>

#include "files/npy_header.hpp"
#include "files/storage.hpp"

namespace flashtile::cli {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kVersionEnd = 8;  // the magic, a major and a minor number

/// Where the header text begins, and its length.
std::pair<size_t, size_t> locate_header(std::span<const std::byte> bytes, const std::string& name) {
  if (bytes.size() < kVersionEnd || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    throw file_error(name, "is not a .npy file: it does not begin with \\x93NUMPY and a version");
  }
  const int major = std::to_integer<int>(bytes[6]);
  if (major < 1 || major > 3) {
    throw file_error(name, "has .npy version " + std::to_string(major) + "; known: 1 to 3");
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  const size_t begin = kVersionEnd + length_bytes;
  if (bytes.size() < begin) throw file_error(name, "is cut short inside its header");
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) {
    length |= std::to_integer<size_t>(bytes[kVersionEnd + i]) << (8 * i);
  }
  if (length > bytes.size() - begin) {
    throw file_error(name, "is cut short: header length " + std::to_string(length) + ", but " +
                               std::to_string(bytes.size() - begin) + " bytes follow");
  }
  return {begin, length};
}

}  // namespace

TensorFile parse_npy(std::span<const std::byte> bytes, const std::string& name) {
  const auto [begin, length] = locate_header(bytes, name);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data() + begin), length);
  const NpyHeader header = parse_npy_header(text, name);
  int64_t needed = 0;
  if (!contiguous_bytes(header.dtype, header.shape, &needed)) {
    throw file_error(name, "the product of its dimensions overflows");
  }
  const std::span<const std::byte> data = bytes.subspan(begin + length);
  if (data.size() != static_cast<size_t>(needed)) {
    throw file_error(name, "has " + std::to_string(data.size()) +
                               " bytes of data, its header names " + std::to_string(needed));
  }
  TensorFile file;
  const std::byte* address = data.data();
  if (reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(dtype_bytes(header.dtype))) {
    const std::shared_ptr<std::byte[]> copy = allocate_bytes(data.size());
    if (!data.empty()) std::memcpy(copy.get(), address, data.size());
    address = copy.get();
    file.storage.emplace_back(copy, copy.get());
  }
  TensorView tensor(address, header.dtype, header.shape);
  if (header.fortran_order) {
    int64_t stride = 1;
    for (size_t d = 0; d < header.shape.size(); ++d) {
      tensor.strides[d] = stride;
      stride *= header.shape[d];
    }
  }
  file.tensors[""] = tensor;
  return file;
}

TensorFile read_npy(const std::string& path) {
  const MappedFile mapped = map_file(path);
  TensorFile file = parse_npy(mapped.bytes, path);
  file.storage.push_back(mapped.owner);
  return file;
}

void write_npy(const std::string& path, const TensorView& tensor) {
  const std::string_view descr = npy_descr(tensor.dtype);
  if (descr.empty()) {
    throw file_error(path, "a .npy file cannot hold " + std::string(dtype_name(tensor.dtype)) +
                               "; write a .safetensors file");
  }
  std::string shape;
  for (int d = 0; d < tensor.ndim; ++d) {
    shape += std::to_string(tensor.shape[static_cast<size_t>(d)]);
    if (d == 0 || d + 1 < tensor.ndim) shape += ",";
    if (d + 1 < tensor.ndim) shape += " ";
  }
  std::string text =
      "{'descr': '" + std::string(descr) + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  // Data begins at a multiple of 64, as NumPy itself writes it.
  const size_t prefix = kVersionEnd + 2;
  text.append(kAlignment - 1 - (prefix + text.size()) % kAlignment, ' ');
  text += '\n';
  std::string start(kMagic);
  start +=
      {'\x01', '\x00', static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  start += text;

  const auto bytes = static_cast<size_t>(tensor.numel() * dtype_bytes(tensor.dtype));
  std::shared_ptr<std::byte[]> copy;
  const auto* data = static_cast<const std::byte*>(tensor.data);
  if (!is_contiguous(tensor)) {
    copy = allocate_bytes(bytes);
    copy_contiguous(tensor, copy.get());
    data = copy.get();
  }
  const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(start)), {data, bytes}};
  write_file(path, pieces);
}

}  // namespace flashtile::cli
