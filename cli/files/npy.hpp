// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "files/tensor_file.hpp"

namespace flashtile::cli {

/// Reads a .npy file, version 1 to 3: f2 f4 f8 i4 i8 u1 b1, little-endian. An array in Fortran
/// order gives a view with the strides of that order. The result holds one tensor with an empty
/// name. Throws Error(kIo) naming the file and what is wrong with it.
TensorFile read_npy(const std::string& path);

/// The same from bytes, which must outlive the result; `name` stands for the file in errors.
/// Data that is not aligned to its element is copied to storage of its own.
TensorFile parse_npy(std::span<const std::byte> bytes, const std::string& name);

/// Writes one tensor as version 1; strided tensors are made contiguous. bf16 has no .npy type:
/// Error(kIo) advises .safetensors.
void write_npy(const std::string& path, const TensorView& tensor);

}  // namespace flashtile::cli
