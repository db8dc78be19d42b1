// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "flashtile/error.hpp"
#include "flashtile/tensor.hpp"

namespace flashtile::cli {

/// Alignment of memory that the command line tool allocates: a cache line, and a zmm register.
inline constexpr size_t kAlignment = 64;

/// Bytes that live as long as the pointer. Aligned to kAlignment; not initialised.
std::shared_ptr<std::byte[]> allocate_bytes(size_t bytes);

/// The bytes of a whole regular file, mapped read-only. Throws Error(kIo) naming the path.
struct MappedFile {
  std::shared_ptr<const std::byte> owner;
  std::span<const std::byte> bytes;
};
MappedFile map_file(const std::string& path);

/// Writes the pieces one after the other. A regular file appears whole or not at all: it is
/// written aside and renamed. Throws Error(kIo) naming the path.
void write_file(const std::string& path, std::span<const std::span<const std::byte>> pieces);

/// Error(kIo) "name: text".
Error file_error(std::string_view name, const std::string& text);

/// The text in quotes, fit for one line: not longer than some 80 characters, printable ASCII.
std::string in_quotes(std::string_view text);

/// Bytes that a contiguous tensor of this shape takes; false where the product, or any stride,
/// does not fit into int64, or a dimension is negative.
bool contiguous_bytes(DType dtype, std::span<const int64_t> shape, int64_t* bytes);

/// Copies the elements in row-major order to `target`, whatever the strides.
void copy_contiguous(const TensorView& tensor, std::byte* target);

/// True when the strides are those of a row-major tensor (dimensions of size 1 do not matter).
bool is_contiguous(const TensorView& tensor);

}  // namespace flashtile::cli
