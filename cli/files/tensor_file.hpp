// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "flashtile/tensor.hpp"

namespace flashtile::cli {

using TensorMap = std::map<std::string, TensorView>;
using Metadata = std::map<std::string, std::string>;

/// Tensors by name, with the memory that they look into. The views are valid as long as `storage`
/// is; data of a mapped file is read-only.
struct TensorFile {
  TensorMap tensors;
  Metadata metadata;
  std::vector<std::shared_ptr<const std::byte>> storage;
};

/// A .npy or .safetensors file, by the ending of its path. A .npy file gives one tensor with an
/// empty name. Throws Error(kIo) naming the file and what is wrong with it.
TensorFile read_tensor_file(const std::string& path);

}  // namespace flashtile::cli
