// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "files/tensor_file.hpp"

namespace flashtile::cli {

/// What the JSON header of a .safetensors file says about one tensor.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kNone;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  ///< bytes from the start of the data
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;
  Metadata metadata;
};

/// Reads the header text. Checks everything that needs no data: JSON, keys, types, dtype names,
/// number of dimensions, duplicates, and that shape and offsets agree. Throws Error(kIo).
SafetensorsHeader parse_safetensors_header(std::string_view text, const std::string& file_name);

/// The header's name of a dtype; empty where the format or this tool has none.
std::string_view safetensors_dtype_name(DType dtype);

}  // namespace flashtile::cli
