// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <vector>

#include "files/storage.hpp"
#include "files/tensor_file.hpp"

namespace flashtile::cli {

/// What a fuzzer asks of a file that was accepted: every element can be read where the view says it
/// is, and is aligned. A failure traps, and so is reported.
inline void touch_all(const TensorFile& file) {
  for (const auto& [name, tensor] : file.tensors) {
    const int64_t element = dtype_bytes(tensor.dtype);
    if (reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(element) != 0) {
      std::abort();
    }
    std::vector<std::byte> copy(static_cast<size_t>(tensor.numel() * element));
    copy_contiguous(tensor, copy.data());
  }
}

}  // namespace flashtile::cli
