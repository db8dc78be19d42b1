// SPDX-License-Identifier: Apache-2.0
#pragma once

// Between chunks of linear attention and the operands of products (attention_operands.hpp).

#include "cpu/kernels/attention_operands.hpp"
#include "cpu/kernels/scalar_decay_types.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

template <class Operands>
inline constexpr bool kHasFloatElements = sizeof(typename Operands::Element) == 4;

/// The most rows that a list of addresses has room for: rows of a chunk, or of a state.
inline constexpr int64_t kMaxListedRows = 1040;

/// Addresses of consecutive rows.
struct RowList {
  void* rows[kMaxListedRows];

  FLASHTILE_INLINE RowList(char* data, int64_t row_stride, int64_t count) {
    for (int64_t i = 0; i < count; ++i) rows[i] = data + i * row_stride;
  }
  FLASHTILE_INLINE RowList(const ChunkRows& chunk, int64_t count)
      : RowList(chunk.data, chunk.row_stride, count) {}
};

/// Has rows [begin, end) of a chunk fetched; those with gaps between elements are left out.
inline void prefetch_rows(const ChunkRows& chunk, int64_t begin, int64_t end, int64_t dim,
                          RowPrefetch* prefetch) {
  if (chunk.data == nullptr || chunk.stride != 1) return;
  prefetch->add({chunk.data + begin * chunk.row_stride, chunk.row_stride, end - begin,
                 dim * (chunk.dtype == DType::kF32 ? 4 : 2)});
}

/// Float rows to the rows of a chunk; nothing where these are not wanted.
inline void store_chunk_rows(const float* src, int64_t ld, int64_t rows, int64_t dim,
                             const ChunkRows& target) {
  if (target.data == nullptr) return;
  const RowList list(target, rows);
  unpack_rows(src, ld, rows, dim, {list.rows, target.dtype, target.stride});
}

/// Float rows, each times its scale where there is one, in the form of the right side of a product.
inline void right_from_floats(const float* src, int64_t ld_src, int64_t rows, int64_t dim,
                              const float* scale, float* dst, int64_t ld) {
  for (int64_t r = 0; r < rows; ++r) {
    const Vf factor = broadcast(scale == nullptr ? 1.0f : scale[r]);
    for (int64_t d = 0; d < dim; d += kLanes) {
      store(dst + r * ld + d, load(src + r * ld_src + d) * factor);
    }
  }
}
#if defined(__AVX512BF16__)
inline void right_from_floats(const float* src, int64_t ld_src, int64_t rows, int64_t dim,
                              const float* scale, Bf16* dst, int64_t ld) {
  for (int64_t r = 0; r < rows; r += 2) {
    const bool is_last = r + 1 == rows;
    const Vf low_factor = broadcast(scale == nullptr ? 1.0f : scale[r]);
    const Vf high_factor = broadcast(is_last ? 0.0f : scale == nullptr ? 1.0f : scale[r + 1]);
    const float* low = src + r * ld_src;
    const float* high = is_last ? low : low + ld_src;
    for (int64_t d = 0; d < dim; d += kLanes) {
      const Vf x = load(low + d) * low_factor;
      const Vf y = is_last ? zero() : load(high + d) * high_factor;
      store_u(reinterpret_cast<uint32_t*>(dst + r * ld + 2 * d), round_to_pairs(x, y));
    }
  }
}
#endif

}  // namespace flashtile::cpu::FLASHTILE_ISA
