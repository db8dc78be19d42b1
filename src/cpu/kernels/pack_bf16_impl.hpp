// SPDX-License-Identifier: Apache-2.0
#pragma once

// The text behind pack_bf16.hpp.

#include <type_traits>

#include "cpu/kernels/pack_bf16.hpp"
#include "cpu/kernels/pack_impl.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Elements d .. d + count - 1 of a row as bfloat16 bits; zeros beyond, and for a null row.
template <typename T>
FLASHTILE_INLINE Vu load_bf16_bits(const T* row, int64_t d, int64_t count, int64_t stride,
                                   float scale) {
  if (row == nullptr || count <= 0) return broadcast_u(0);
  const Vf x = load_elements(row, d, count, stride);
  return to_bf16_bits(sizeof(T) == 1 ? x * broadcast(scale) : x);
}
FLASHTILE_INLINE Vu load_bf16_bits(const Bf16* row, int64_t d, int64_t count, int64_t stride,
                                   float /*scale*/) {
  if (row == nullptr || count <= 0) return broadcast_u(0);
  if (stride == 1) {
    return count >= kLanes ? load_u16(&row[d].bits) : load_u16_partial(&row[d].bits, count);
  }
  return as_vu(load_elements(row, d, count, stride)) >> 16;
}

/// `count` pairs, one a lane, to pairs of elements in memory.
FLASHTILE_INLINE void store_pairs(Bf16* p, Vu pairs, int64_t count) {
  if (count >= kLanes) {
    __builtin_memcpy(p, &pairs, sizeof(pairs));
  } else {
    store_u_partial(reinterpret_cast<uint32_t*>(p), pairs, count);
  }
}

/// Collects whether a value had the exponent of inf and NaN.
struct BitsCheck {
  Mf seen;
  FLASHTILE_INLINE void add(Vu x) {
    seen = seen | ((x & broadcast_u(0x7F80)) == broadcast_u(0x7F80));
  }
  FLASHTILE_INLINE void add_pairs(Vu x) {
    add(x);
    add(x >> 16);
  }
};

/// Elements d .. d + 2 kLanes - 1 of a row as pairs; zeros from dim on, and for a null row.
template <typename T>
FLASHTILE_INLINE Vu load_row_pairs(const T* row, int64_t d, int64_t dim, int64_t stride,
                                   float scale) {
  Bf16 line[2 * kLanes];
  for (int half = 0; half < 2; ++half) {
    const int64_t first = d + half * kLanes;
    store_u16(&line[half * kLanes].bits, load_bf16_bits(row, first, dim - first, stride, scale));
  }
  Vu pairs;
  __builtin_memcpy(&pairs, line, sizeof(line));
  return pairs;
}
FLASHTILE_INLINE Vu load_row_pairs(const Bf16* row, int64_t d, int64_t dim, int64_t stride,
                                   float scale) {
  if (row != nullptr && stride == 1 && dim - d >= 2 * kLanes) {
    return load_u(reinterpret_cast<const uint32_t*>(row + d));  // they are pairs in memory
  }
  return load_row_pairs<Bf16>(row, d, dim, stride, scale);
}

FLASHTILE_INLINE Vu load_row_pairs(const float* row, int64_t d, int64_t dim, int64_t stride,
                                   float scale) {
  if (row != nullptr && stride == 1 && dim - d >= 2 * kLanes) {
    return round_neighbours(load(row + d), load(row + d + kLanes));
  }
  return load_row_pairs<float>(row, d, dim, stride, scale);
}

template <typename T>
bool pack_rows_bf16_of(const RowSource& src, int64_t rows, int64_t dim, Bf16* dst, int64_t ld) {
  BitsCheck check{first_lanes(0)};
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = static_cast<const T*>(src.rows[r]);
    const float scale = row_scale_of<T>(src, r);
    int64_t d = 0;
    if constexpr (std::is_same_v<T, Bf16>) {  // they are pairs in memory
      for (; row != nullptr && src.stride == 1 && d + 2 * kLanes <= dim; d += 2 * kLanes) {
        fetch_ahead<T>(src, r, rows, d);
        const Vu pairs = load_row_pairs(row, d, dim, src.stride, scale);
        check.add_pairs(pairs);
        store_pairs(dst + r * ld + d, pairs, kLanes);
      }
    }
    for (; d < ld; d += kLanes) {
      const Vu x = load_bf16_bits(row, d, dim - d, src.stride, scale);
      check.add(x);
      store_u16_partial(&dst[r * ld + d].bits, x, ld - d);
    }
  }
  return any(check.seen);
}

template <typename T>
bool pack_pairs_of(const RowSource& src, int64_t rows, int64_t dim, Bf16* dst, int64_t ld) {
  BitsCheck check{first_lanes(0)};
  for (int64_t r = 0; r < rows; r += 2) {
    const T* low_row = static_cast<const T*>(src.rows[r]);
    const T* high_row = r + 1 < rows ? static_cast<const T*>(src.rows[r + 1]) : nullptr;
    const float low_scale = row_scale_of<T>(src, r);
    const float high_scale = high_row != nullptr ? row_scale_of<T>(src, r + 1) : 1;
    for (int64_t d = 0; d < ld; d += kLanes) {
      fetch_ahead<T>(src, r, rows, d);
      fetch_ahead<T>(src, r + 1, rows, d);
      const Vu low = load_bf16_bits(low_row, d, dim - d, src.stride, low_scale);
      const Vu high = load_bf16_bits(high_row, d, dim - d, src.stride, high_scale);
      check.add(low);
      check.add(high);
      store_pairs(dst + r * ld + 2 * d, low | (high << 16), ld - d);
    }
  }
  return any(check.seen);
}

template <typename T>
bool pack_pairs_transposed_of(const RowSource& src, int64_t rows, int64_t dim, Bf16* dst,
                              int64_t ld) {
  BitsCheck check{first_lanes(0)};
  for (int64_t r = 0; r < ld; r += kLanes) {
    for (int64_t d = 0; d < dim; d += 2 * kLanes) {
      Vu block[kLanes];  // row r + i: pairs of columns d .. d + 2 kLanes - 1
      for (int i = 0; i < kLanes; ++i) {
        const T* row = r + i < rows ? static_cast<const T*>(src.rows[r + i]) : nullptr;
        const float scale = row != nullptr ? row_scale_of<T>(src, r + i) : 1;
        fetch_ahead<T>(src, r + i, rows, d);
        block[i] = load_row_pairs(row, d, dim, src.stride, scale);
        check.add_pairs(block[i]);
      }
      transpose(block);
      const int64_t pairs = (dim - d + 1) / 2;
      const int64_t n = pairs < kLanes ? pairs : kLanes;
      for (int64_t i = 0; i < n; ++i) {
        store_pairs(dst + ((d / 2 + i) * ld + r) * 2, block[i], ld - r);
      }
    }
  }
  return any(check.seen);
}

bool pack_rows_bf16(const RowSource& src, int64_t rows, int64_t dim, Bf16* dst, int64_t ld) {
  return with_element(src.dtype, [&](auto tag) {
    return pack_rows_bf16_of<typename decltype(tag)::Type>(src, rows, dim, dst, ld);
  });
}

bool pack_pairs(const RowSource& src, int64_t rows, int64_t dim, Bf16* dst, int64_t ld) {
  return with_element(src.dtype, [&](auto tag) {
    return pack_pairs_of<typename decltype(tag)::Type>(src, rows, dim, dst, ld);
  });
}

bool pack_pairs_transposed(const RowSource& src, int64_t rows, int64_t dim, Bf16* dst, int64_t ld) {
  return with_element(src.dtype, [&](auto tag) {
    return pack_pairs_transposed_of<typename decltype(tag)::Type>(src, rows, dim, dst, ld);
  });
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
