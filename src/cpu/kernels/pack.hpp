// SPDX-License-Identifier: Apache-2.0
#pragma once

// Between tensors of the caller (f32, f16 or bf16, any strides, rows anywhere) and packed float32
// tiles that gemm.hpp reads.
//
// Source: an array of row pointers, one for each row of the tile, null for a row that is absent or
// must not be read: it becomes zeros. `stride` is the distance of neighbours within a row, in
// elements; 1 is the fast path. Exactly dim elements of a row are touched.
//
//   pack_rows             dst[row * ld + d], ld >= dim; the columns dim .. ld - 1 become 0
//   pack_rows_transposed  dst[d * ld + row], ld >= rows; the columns rows .. ld - 1 become 0
//   unpack_rows           float rows -> strided rows of any dtype, times `scale` and
//                         row_scale[row]; a null row is skipped
//
// Elements of one byte are multiplied by the scale of their row. All values are multiplied by
// `scale` on the way (exact where it is 1). The packing functions return true when some value that
// they read is not finite. For K: pack_rows_transposed gives B of S = QK'; for V: pack_rows gives B
// of O = PV. As leading dimension take tile_ld(n).
//
// The forms for the bf16 dot product are in pack_bf16.hpp.

#include "cpu/kernels/gemm.hpp"
#include "flashtile/dtype.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Rows of a tensor to read; see the top of the file.
struct RowSource {
  const void* const* rows;
  DType dtype;
  int64_t stride = 1;
  const float* scales = nullptr;  ///< by row, for i8 and e4m3; null: 1
};

/// Rows of a tensor to write.
struct RowTarget {
  void* const* rows;
  DType dtype;
  int64_t stride = 1;
};

/// Fetches the first `dim` elements of rows into the second cache, all at once, as far as the
/// processor's buffers go. Rows of one head lie apart where heads lie side by side: it does not see
/// them coming, and would wait for each in its turn. Packing fetches what comes later as it goes.
FLASHTILE_INLINE void fetch_rows(const RowSource& src, int64_t rows, int64_t dim) {
  constexpr int64_t kLine = 64;
  if (src.stride != 1) return;
  const bool is_byte = src.dtype == DType::kI8 || src.dtype == DType::kE4M3;
  const int64_t bytes = dim * (src.dtype == DType::kF32 ? 4 : is_byte ? 1 : 2);
  for (int64_t r = 0; r < rows; ++r) {
    const char* row = static_cast<const char*>(src.rows[r]);
    for (int64_t at = 0; row != nullptr && at < bytes; at += kLine) {
      __builtin_prefetch(row + at, 0, 2);
    }
  }
}

/// A good leading dimension for n columns: whole vectors, and not a multiple of 1 KiB, whose rows
/// would share few cache sets.
FLASHTILE_INLINE int64_t tile_ld(int64_t n) {
  const int64_t ld = padded(n);
  return ld % 256 == 0 && ld > 0 ? ld + 16 : ld;
}

/// dst[row * ld + d] = scale * source; see the top of the file. dtype is f32, f16, bf16, i8 or
/// e4m3.
bool pack_rows(const RowSource& src, int64_t rows, int64_t dim, float* dst, int64_t ld,
               float scale = 1.0f);

/// dst[d * ld + row] = scale * source; see the top of the file.
bool pack_rows_transposed(const RowSource& src, int64_t rows, int64_t dim, float* dst, int64_t ld,
                          float scale = 1.0f);

/// Rows of the target = scale * row_scale[row] * src[row * ld + d], rounded to its dtype.
void unpack_rows(const float* src, int64_t ld, int64_t rows, int64_t dim, const RowTarget& target,
                 float scale = 1.0f, const float* row_scale = nullptr);

}  // namespace flashtile::cpu::FLASHTILE_ISA
