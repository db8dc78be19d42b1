// SPDX-License-Identifier: Apache-2.0
//
// Matrix products of a warp. In lane l, with g = l / 4 and t = l % 4, the accumulator of a 16x8
// product holds rows g (elements 0, 1) and g + 8 (elements 2, 3) of columns 2t and 2t + 1.
#pragma once

#include "cuda/device/ptx/convert.cuh"

namespace flashtile::device {

/// d += a b, 16x16 times 16x8 of 16-bit elements. a: rows g, g + 8, g, g + 8 of columns 2t, 2t + 1
/// (a[0], a[1]) and 2t + 8, 2t + 9 (a[2], a[3]); b: column g of rows 2t, 2t + 1 (b0) and 2t + 8,
/// 2t + 9 (b1).
template <Element element>
FLASHTILE_DEVICE void mma_16x8x16(float (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
  static_assert(element == Element::kF16 || element == Element::kBF16, "a 16-bit element");
  if constexpr (element == Element::kF16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// d += a b, 16x8 times 8x8 of TF32. a: rows g, g + 8, g, g + 8 of columns t (a[0], a[1]) and t + 4
/// (a[2], a[3]); b: column g of rows t (b0) and t + 4 (b1).
FLASHTILE_DEVICE void mma_16x8x8_tf32(float (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace flashtile::device
