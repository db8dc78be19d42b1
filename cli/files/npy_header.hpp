// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "flashtile/dtype.hpp"

namespace flashtile::cli {

struct NpyHeader {
  DType dtype = DType::kNone;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

/// Reads the dictionary of a .npy header, which is Python text such as
/// "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }". Throws Error(kIo).
NpyHeader parse_npy_header(std::string_view text, const std::string& file_name);

/// The type text ("<f4") of a dtype; empty for those that .npy does not know.
std::string_view npy_descr(DType dtype);

}  // namespace flashtile::cli
