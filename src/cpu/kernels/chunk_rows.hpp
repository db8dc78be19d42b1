// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "flashtile/dtype.hpp"

namespace flashtile::cpu {

/// Rows of a chunk, one for each time, at a constant distance in bytes; elements of a row are
/// `stride` elements apart.
struct ChunkRows {
  char* data;
  int64_t row_stride;
  int64_t stride;
  DType dtype;
};

}  // namespace flashtile::cpu
