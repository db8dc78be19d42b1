// SPDX-License-Identifier: Apache-2.0
#include "files/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "files/safetensors_header.hpp"
#include "files/storage.hpp"

namespace flashtile::cli {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

/// Tensors have to lie one behind the other: an overlap or a hole is a damaged header, or bytes
/// that somebody hides.
void check_coverage(std::vector<SafetensorsEntry>& entries, uint64_t data_bytes,
                    const std::string& name) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t at = 0;
  for (const SafetensorsEntry& entry : entries) {
    const std::string tensor = "tensor " + in_quotes(entry.name);
    if (entry.end > data_bytes) {
      throw file_error(name, tensor + " ends at byte " + std::to_string(entry.end) +
                                 " of the data, which has " + std::to_string(data_bytes) +
                                 ": the file is cut short or damaged");
    }
    if (entry.begin != at) {
      throw file_error(name, tensor + " begins at byte " + std::to_string(entry.begin) +
                                 " of the data, " + std::to_string(at) +
                                 " is expected: tensors overlap or leave a hole");
    }
    at = entry.end;
  }
  if (at != data_bytes) {
    throw file_error(name, "has " + std::to_string(data_bytes) +
                               " bytes of data, its header names " + std::to_string(at));
  }
}

bool is_aligned(const void* data, DType dtype) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(dtype_bytes(dtype)) == 0;
}

void append_u64(std::string& text, uint64_t value) {
  for (unsigned shift = 0; shift < 64; shift += 8) {
    text += static_cast<char>((value >> shift) & 0xff);
  }
}

}  // namespace

TensorFile parse_safetensors(std::span<const std::byte> bytes, const std::string& name) {
  if (bytes.size() < kLengthBytes) {
    throw file_error(name, "is cut short: a .safetensors file begins with 8 bytes of length");
  }
  uint64_t header_bytes = 0;
  for (unsigned i = 0; i < kLengthBytes; ++i) {
    header_bytes |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  }
  const uint64_t rest = bytes.size() - kLengthBytes;
  if (header_bytes > kMaxHeaderBytes) {
    throw file_error(name, "header length " + std::to_string(header_bytes) +
                               " is over the format's limit: not a .safetensors file, or damaged");
  }
  if (header_bytes > rest) {
    throw file_error(name, "is cut short: header length " + std::to_string(header_bytes) +
                               ", but " + std::to_string(rest) + " bytes follow");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data() + kLengthBytes),
                              header_bytes);
  SafetensorsHeader header = parse_safetensors_header(text, name);
  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + header_bytes);
  check_coverage(header.entries, data.size(), name);

  TensorFile file;
  file.metadata = std::move(header.metadata);
  for (const SafetensorsEntry& entry : header.entries) {
    const std::byte* address = data.data() + entry.begin;
    const size_t size = entry.end - entry.begin;
    if (!is_aligned(address, entry.dtype)) {
      const std::shared_ptr<std::byte[]> copy = allocate_bytes(size);
      if (size > 0) std::memcpy(copy.get(), address, size);
      address = copy.get();
      file.storage.emplace_back(copy, copy.get());
    }
    file.tensors[entry.name] = TensorView(address, entry.dtype, entry.shape);
  }
  return file;
}

TensorFile read_safetensors(const std::string& path) {
  const MappedFile mapped = map_file(path);
  TensorFile file = parse_safetensors(mapped.bytes, path);
  file.storage.push_back(mapped.owner);
  return file;
}

void write_safetensors(const std::string& path, const TensorMap& tensors,
                       const Metadata& metadata) {
  std::vector<std::pair<std::string, TensorView>> ordered(tensors.begin(), tensors.end());
  std::stable_sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
    return dtype_bytes(a.second.dtype) > dtype_bytes(b.second.dtype);
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::vector<std::shared_ptr<std::byte[]>> copies;
  std::vector<std::span<const std::byte>> pieces(1);  // the first is for the header
  int64_t at = 0;
  for (const auto& [name, tensor] : ordered) {
    const std::string_view dtype = safetensors_dtype_name(tensor.dtype);
    if (dtype.empty() || name == "__metadata__") {
      throw file_error(path, "tensor " + in_quotes(name) + " cannot be stored: dtype " +
                                 std::string(dtype_name(tensor.dtype)) + ", or a reserved name");
    }
    const std::vector<int64_t> shape(tensor.shape.begin(), tensor.shape.begin() + tensor.ndim);
    const int64_t bytes = tensor.numel() * dtype_bytes(tensor.dtype);
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
    if (is_contiguous(tensor)) {
      pieces.emplace_back(static_cast<const std::byte*>(tensor.data), static_cast<size_t>(bytes));
    } else {
      copies.push_back(allocate_bytes(static_cast<size_t>(bytes)));
      copy_contiguous(tensor, copies.back().get());
      pieces.emplace_back(copies.back().get(), static_cast<size_t>(bytes));
    }
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    throw file_error(path, "a tensor name or metadata is not valid UTF-8");
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string start;
  append_u64(start, text.size());
  start += text;
  pieces[0] = std::as_bytes(std::span(start));
  write_file(path, pieces);
}

}  // namespace flashtile::cli
