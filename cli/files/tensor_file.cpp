// SPDX-License-Identifier: Apache-2.0
#include "files/tensor_file.hpp"

#include "files/npy.hpp"
#include "files/safetensors.hpp"
#include "files/storage.hpp"

namespace flashtile::cli {

TensorFile read_tensor_file(const std::string& path) {
  if (path.ends_with(".npy")) return read_npy(path);
  if (path.ends_with(".safetensors")) return read_safetensors(path);
  throw file_error(path, "is neither a .npy nor a .safetensors file");
}

}  // namespace flashtile::cli
