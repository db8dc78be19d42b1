// SPDX-License-Identifier: Apache-2.0
#pragma once

// The text behind pack.hpp, compiled once for each instruction set.

#include "cpu/kernels/pack.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Elements d .. d + count - 1 of a row as floats, zeros beyond; count <= kLanes.
template <typename T>
FLASHTILE_INLINE Vf load_elements(const T* row, int64_t d, int64_t count, int64_t stride) {
  if (stride == 1) return count >= kLanes ? load(row + d) : load_partial(row + d, count);
  T chunk[kLanes] = {};
  const int64_t n = count < kLanes ? count : kLanes;
  for (int64_t i = 0; i < n; ++i) chunk[i] = row[(d + i) * stride];
  return load(chunk);
}

/// What elements of row `row` are multiplied by.
template <typename T>
FLASHTILE_INLINE float row_scale_of(const RowSource& src, int64_t row) {
  return sizeof(T) == 1 && src.scales != nullptr ? src.scales[row] : 1.0f;
}

template <typename T>
struct ElementTag {
  using Type = T;
};

/// Calls body with the tag of a dtype's element.
template <typename Body>
FLASHTILE_INLINE auto with_element(DType dtype, const Body& body) {
  if (dtype == DType::kF16) return body(ElementTag<F16>{});
  if (dtype == DType::kBF16) return body(ElementTag<Bf16>{});
  if (dtype == DType::kI8) return body(ElementTag<I8>{});
  if (dtype == DType::kE4M3) return body(ElementTag<E4m3>{});
  return body(ElementTag<float>{});
}

template <typename T>
FLASHTILE_INLINE void store_elements(T* row, int64_t d, int64_t count, int64_t stride, Vf x) {
  if (stride == 1) {
    if (count >= kLanes) return store(row + d, x);
    return store_partial(row + d, x, count);
  }
  T chunk[kLanes];
  store(chunk, x);
  const int64_t n = count < kLanes ? count : kLanes;
  for (int64_t i = 0; i < n; ++i) row[(d + i) * stride] = chunk[i];
}

/// Collects whether a value was inf or NaN: 0 * x is NaN for those, and NaN stays.
struct FiniteCheck {
  Vf sum;
  FLASHTILE_INLINE void add(Vf x) { sum = fma(x, zero(), sum); }
  FLASHTILE_INLINE bool failed() const { return any(sum != sum); }
};

/// Where a line begins at element d, fetches that of the row kRowsAhead further on. At the pace of
/// packing: of all that fetch_rows asks for at once the processor drops most.
template <typename T>
FLASHTILE_INLINE void fetch_ahead(const RowSource& src, int64_t row, int64_t rows, int64_t d) {
  constexpr int64_t kRowsAhead = 16;
  constexpr int64_t kLineElements = 64 / static_cast<int64_t>(sizeof(T));
  if (row + kRowsAhead >= rows || d % kLineElements != 0) return;
  const auto* ahead = static_cast<const T*>(src.rows[row + kRowsAhead]);
  if (ahead != nullptr) __builtin_prefetch(ahead + d * src.stride);
}

template <typename T>
bool pack_rows_of(const RowSource& src, int64_t rows, int64_t dim, float scale, float* dst,
                  int64_t ld) {
  FiniteCheck check{zero()};
  for (int64_t r = 0; r < rows; ++r) {
    const Vf factor = broadcast(scale * row_scale_of<T>(src, r));
    const T* row = static_cast<const T*>(src.rows[r]);
    float* to = dst + r * ld;
    const int64_t filled = row == nullptr ? 0 : dim;
    for (int64_t d = 0; d < filled; d += kLanes) {
      fetch_ahead<T>(src, r, rows, d);
      const Vf x = load_elements(row, d, dim - d, src.stride);
      check.add(x);
      store_partial(to + d, x * factor, ld - d);
    }
    for (int64_t d = filled == 0 ? 0 : padded(dim); d < ld; d += kLanes) {
      store_partial(to + d, zero(), ld - d);
    }
  }
  return check.failed();
}

template <typename T>
bool pack_rows_transposed_of(const RowSource& src, int64_t rows, int64_t dim, float scale,
                             float* dst, int64_t ld) {
  FiniteCheck check{zero()};
  const int64_t end = (rows + kLanes - 1) / kLanes * kLanes;
  for (int64_t d = 0; d < dim && end < ld; ++d) {
    for (int64_t r = end; r < ld; r += kLanes) store_partial(dst + d * ld + r, zero(), ld - r);
  }
  for (int64_t r = 0; r < rows; r += kLanes) {
    const T* row[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      row[i] = r + i < rows ? static_cast<const T*>(src.rows[r + i]) : nullptr;
    }
    for (int64_t d = 0; d < dim; d += kLanes) {
      Vu block[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        fetch_ahead<T>(src, r + i, rows, d);
        Vf x = zero();
        if (row[i] != nullptr) x = load_elements(row[i], d, dim - d, src.stride);
        check.add(x);
        const bool is_row = row[i] != nullptr;
        block[i] = as_vu(x * broadcast(is_row ? scale * row_scale_of<T>(src, r + i) : scale));
      }
      transpose(block);
      const int64_t n = dim - d < kLanes ? dim - d : kLanes;
      for (int64_t i = 0; i < n; ++i) {
        store_partial(dst + (d + i) * ld + r, as_vf(block[i]), ld - r);
      }
    }
  }
  return check.failed();
}

template <typename T>
void unpack_rows_to(const float* src, int64_t ld, int64_t rows, int64_t dim,
                    const RowTarget& target, float scale, const float* row_scale) {
  for (int64_t r = 0; r < rows; ++r) {
    T* row = static_cast<T*>(target.rows[r]);
    if (row == nullptr) continue;
    const Vf factor = broadcast(row_scale == nullptr ? scale : scale * row_scale[r]);
    for (int64_t d = 0; d < dim; d += kLanes) {
      const Vf x = load_partial(src + r * ld + d, dim - d) * factor;
      store_elements(row, d, dim - d, target.stride, x);
    }
  }
}

bool pack_rows(const RowSource& src, int64_t rows, int64_t dim, float* dst, int64_t ld,
               float scale) {
  return with_element(src.dtype, [&](auto tag) {
    return pack_rows_of<typename decltype(tag)::Type>(src, rows, dim, scale, dst, ld);
  });
}

bool pack_rows_transposed(const RowSource& src, int64_t rows, int64_t dim, float* dst, int64_t ld,
                          float scale) {
  return with_element(src.dtype, [&](auto tag) {
    return pack_rows_transposed_of<typename decltype(tag)::Type>(src, rows, dim, scale, dst, ld);
  });
}

void unpack_rows(const float* src, int64_t ld, int64_t rows, int64_t dim, const RowTarget& target,
                 float scale, const float* row_scale) {
  if (target.dtype == DType::kF16) {
    return unpack_rows_to<F16>(src, ld, rows, dim, target, scale, row_scale);
  }
  if (target.dtype == DType::kBF16) {
    return unpack_rows_to<Bf16>(src, ld, rows, dim, target, scale, row_scale);
  }
  return unpack_rows_to<float>(src, ld, rows, dim, target, scale, row_scale);
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
