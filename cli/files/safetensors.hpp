// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "files/tensor_file.hpp"

namespace flashtile::cli {

/// Reads a .safetensors file: F64 F32 F16 BF16 I64 I32 U8 BOOL, and the string metadata.
///
/// The rules of the format are enforced: names are unique, and the tensors cover the data without
/// holes or overlap. Throws Error(kIo) naming the file and what is wrong with it.
TensorFile read_safetensors(const std::string& path);

/// The same from bytes, which must outlive the result; `name` stands for the file in errors.
/// Tensors that are not aligned to their element are copied to storage of their own.
TensorFile parse_safetensors(std::span<const std::byte> bytes, const std::string& name);

/// Writes tensors and metadata; strided tensors are made contiguous. Wide elements come first and
/// names in order, so that every tensor is aligned and equal inputs give equal bytes.
void write_safetensors(const std::string& path, const TensorMap& tensors,
                       const Metadata& metadata = {});

}  // namespace flashtile::cli
