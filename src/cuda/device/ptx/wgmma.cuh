// SPDX-License-Identifier: Apache-2.0
//
// Products of a warpgroup (sm_90): d (+)= a b of 64 x 16 times 16 x kN elements. b, and a where it
// is not in registers, lie in shared memory as descriptors say. Row r of d belongs to warp r / 16;
// its lanes hold it as an m16n8 accumulator for each eight columns: d[4 n + e] is row g + 8 (e /
// 2), column 8 n + 2 t + e % 2 for lane 4 g + t. Rows of a in registers are laid out as for
// mma.sync.
#pragma once

#include "cuda/device/ptx/convert.cuh"

namespace flashtile::device {

/// Where an operand lies whose rows of 128 bytes are swizzled as the copy engine does it: 16-byte
/// pieces, their number xor row % 8. `address` is a multiple of 16, its tile's of 1024.
struct OperandAddress {
  uint32 low;  ///< address / 16, and the step between chunks of 64 columns

  /// Rows are those of the result, columns the summed dimension (Q, K).
  FLASHTILE_DEVICE static OperandAddress of_rows(uint32 address) {
    return {(address & 0x3ffffu) >> 4 | 1u << 16};
  }
  /// Rows are the summed dimension (V); `chunk_bytes` is from 64 columns to the next.
  FLASHTILE_DEVICE static OperandAddress of_columns(uint32 address, uint32 chunk_bytes) {
    return {(address & 0x3ffffu) >> 4 | (chunk_bytes >> 4) << 16};
  }
  FLASHTILE_DEVICE OperandAddress operator+(int bytes) const {
    return {low + static_cast<uint32>(bytes / 16)};
  }
  /// Eight rows are 1024 bytes apart; swizzle of 128 bytes.
  FLASHTILE_DEVICE uint64 descriptor() const {
    constexpr uint64 kHigh = 0x40000040ull << 32;
    return kHigh | low;
  }
};

/// Specialised for each width. `shared` takes rows of b; `registers` takes b by columns where
/// kBColumns. d is added to where `adds` is not 0.
template <Element element, int kN>
struct WarpgroupProduct;

#define FLASHTILE_D0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FLASHTILE_D1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define FLASHTILE_D2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define FLASHTILE_D3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define FLASHTILE_D4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define FLASHTILE_D5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define FLASHTILE_D6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define FLASHTILE_D7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define FLASHTILE_D8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define FLASHTILE_D9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define FLASHTILE_D10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define FLASHTILE_D11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define FLASHTILE_D12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define FLASHTILE_D13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define FLASHTILE_D14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define FLASHTILE_D15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define FLASHTILE_D(d, i)                                                               \
  "+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3]), "+f"((d)[i + 4]), \
      "+f"((d)[i + 5]), "+f"((d)[i + 6]), "+f"((d)[i + 7])

// i0 to i6: numbers of the asm's operands behind d.
#define FLASHTILE_PRODUCT(element, type, n, texts, outputs, i0, i1, i2, i3, i4, i5, i6)        \
  template <>                                                                                  \
  struct WarpgroupProduct<element, n> {                                                        \
    FLASHTILE_DEVICE static void shared(float (&d)[n / 2], uint64 a, uint64 b, int adds) {     \
      asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #i2                                \
                   ", 0;\n\t"                                                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" texts  \
                   "}, %" #i0 ", %" #i1 ", p, 1, 1, 0, 0;\n\t}"                                \
                   : outputs                                                                   \
                   : "l"(a), "l"(b), "r"(adds));                                               \
    }                                                                                          \
    template <int kBColumns>                                                                   \
    FLASHTILE_DEVICE static void registers(float (&d)[n / 2], uint32 a0, uint32 a1, uint32 a2, \
                                           uint32 a3, uint64 b, int adds) {                    \
      asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #i5                                \
                   ", 0;\n\t"                                                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" texts  \
                   "}, {%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4 ", p, 1, 1, %" #i6     \
                   ";\n\t}"                                                                    \
                   : outputs                                                                   \
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(adds), "n"(kBColumns));   \
    }                                                                                          \
  };

#define FLASHTILE_PRODUCTS(n, texts, outputs, ...)                                         \
  FLASHTILE_PRODUCT(Element::kBF16, "bf16", n, texts, FLASHTILE_LIST outputs, __VA_ARGS__) \
  FLASHTILE_PRODUCT(Element::kF16, "f16", n, texts, FLASHTILE_LIST outputs, __VA_ARGS__)
#define FLASHTILE_LIST(...) __VA_ARGS__

FLASHTILE_PRODUCTS(64, FLASHTILE_D0 ", " FLASHTILE_D1 ", " FLASHTILE_D2 ", " FLASHTILE_D3,
                   (FLASHTILE_D(d, 0), FLASHTILE_D(d, 8), FLASHTILE_D(d, 16), FLASHTILE_D(d, 24)),
                   32, 33, 34, 35, 36, 37, 38)
FLASHTILE_PRODUCTS(80,
                   FLASHTILE_D0 ", " FLASHTILE_D1 ", " FLASHTILE_D2 ", " FLASHTILE_D3
                                ", " FLASHTILE_D4,
                   (FLASHTILE_D(d, 0), FLASHTILE_D(d, 8), FLASHTILE_D(d, 16), FLASHTILE_D(d, 24),
                    FLASHTILE_D(d, 32)),
                   40, 41, 42, 43, 44, 45, 46)
FLASHTILE_PRODUCTS(96,
                   FLASHTILE_D0 ", " FLASHTILE_D1 ", " FLASHTILE_D2 ", " FLASHTILE_D3
                                ", " FLASHTILE_D4 ", " FLASHTILE_D5,
                   (FLASHTILE_D(d, 0), FLASHTILE_D(d, 8), FLASHTILE_D(d, 16), FLASHTILE_D(d, 24),
                    FLASHTILE_D(d, 32), FLASHTILE_D(d, 40)),
                   48, 49, 50, 51, 52, 53, 54)
FLASHTILE_PRODUCTS(112,
                   FLASHTILE_D0 ", " FLASHTILE_D1 ", " FLASHTILE_D2 ", " FLASHTILE_D3
                                ", " FLASHTILE_D4 ", " FLASHTILE_D5 ", " FLASHTILE_D6,
                   (FLASHTILE_D(d, 0), FLASHTILE_D(d, 8), FLASHTILE_D(d, 16), FLASHTILE_D(d, 24),
                    FLASHTILE_D(d, 32), FLASHTILE_D(d, 40), FLASHTILE_D(d, 48)),
                   56, 57, 58, 59, 60, 61, 62)
FLASHTILE_PRODUCTS(128,
                   FLASHTILE_D0 ", " FLASHTILE_D1 ", " FLASHTILE_D2 ", " FLASHTILE_D3
                                ", " FLASHTILE_D4 ", " FLASHTILE_D5 ", " FLASHTILE_D6
                                ", " FLASHTILE_D7,
                   (FLASHTILE_D(d, 0), FLASHTILE_D(d, 8), FLASHTILE_D(d, 16), FLASHTILE_D(d, 24),
                    FLASHTILE_D(d, 32), FLASHTILE_D(d, 40), FLASHTILE_D(d, 48), FLASHTILE_D(d, 56)),
                   64, 65, 66, 67, 68, 69, 70)
FLASHTILE_PRODUCTS(160,
                   FLASHTILE_D0 ", " FLASHTILE_D1 ", " FLASHTILE_D2 ", " FLASHTILE_D3
                                ", " FLASHTILE_D4 ", " FLASHTILE_D5 ", " FLASHTILE_D6
                                ", " FLASHTILE_D7 ", " FLASHTILE_D8 ", " FLASHTILE_D9,
                   (FLASHTILE_D(d, 0), FLASHTILE_D(d, 8), FLASHTILE_D(d, 16), FLASHTILE_D(d, 24),
                    FLASHTILE_D(d, 32), FLASHTILE_D(d, 40), FLASHTILE_D(d, 48), FLASHTILE_D(d, 56),
                    FLASHTILE_D(d, 64), FLASHTILE_D(d, 72)),
                   80, 81, 82, 83, 84, 85, 86)
FLASHTILE_PRODUCTS(176,
                   FLASHTILE_D0 ", " FLASHTILE_D1 ", " FLASHTILE_D2 ", " FLASHTILE_D3
                                ", " FLASHTILE_D4 ", " FLASHTILE_D5 ", " FLASHTILE_D6
                                ", " FLASHTILE_D7 ", " FLASHTILE_D8 ", " FLASHTILE_D9
                                ", " FLASHTILE_D10,
                   (FLASHTILE_D(d, 0), FLASHTILE_D(d, 8), FLASHTILE_D(d, 16), FLASHTILE_D(d, 24),
                    FLASHTILE_D(d, 32), FLASHTILE_D(d, 40), FLASHTILE_D(d, 48), FLASHTILE_D(d, 56),
                    FLASHTILE_D(d, 64), FLASHTILE_D(d, 72), FLASHTILE_D(d, 80)),
                   88, 89, 90, 91, 92, 93, 94)
FLASHTILE_PRODUCTS(192,
                   FLASHTILE_D0 ", " FLASHTILE_D1 ", " FLASHTILE_D2 ", " FLASHTILE_D3
                                ", " FLASHTILE_D4 ", " FLASHTILE_D5 ", " FLASHTILE_D6
                                ", " FLASHTILE_D7 ", " FLASHTILE_D8 ", " FLASHTILE_D9
                                ", " FLASHTILE_D10 ", " FLASHTILE_D11,
                   (FLASHTILE_D(d, 0), FLASHTILE_D(d, 8), FLASHTILE_D(d, 16), FLASHTILE_D(d, 24),
                    FLASHTILE_D(d, 32), FLASHTILE_D(d, 40), FLASHTILE_D(d, 48), FLASHTILE_D(d, 56),
                    FLASHTILE_D(d, 64), FLASHTILE_D(d, 72), FLASHTILE_D(d, 80), FLASHTILE_D(d, 88)),
                   96, 97, 98, 99, 100, 101, 102)
FLASHTILE_PRODUCTS(256,
                   FLASHTILE_D0 ", " FLASHTILE_D1 ", " FLASHTILE_D2 ", " FLASHTILE_D3
                                ", " FLASHTILE_D4 ", " FLASHTILE_D5 ", " FLASHTILE_D6
                                ", " FLASHTILE_D7 ", " FLASHTILE_D8 ", " FLASHTILE_D9
                                ", " FLASHTILE_D10 ", " FLASHTILE_D11 ", " FLASHTILE_D12
                                ", " FLASHTILE_D13 ", " FLASHTILE_D14 ", " FLASHTILE_D15,
                   (FLASHTILE_D(d, 0), FLASHTILE_D(d, 8), FLASHTILE_D(d, 16), FLASHTILE_D(d, 24),
                    FLASHTILE_D(d, 32), FLASHTILE_D(d, 40), FLASHTILE_D(d, 48), FLASHTILE_D(d, 56),
                    FLASHTILE_D(d, 64), FLASHTILE_D(d, 72), FLASHTILE_D(d, 80), FLASHTILE_D(d, 88),
                    FLASHTILE_D(d, 96), FLASHTILE_D(d, 104), FLASHTILE_D(d, 112),
                    FLASHTILE_D(d, 120)),
                   128, 129, 130, 131, 132, 133, 134)

#undef FLASHTILE_D0
#undef FLASHTILE_D1
#undef FLASHTILE_D2
#undef FLASHTILE_D3
#undef FLASHTILE_D4
#undef FLASHTILE_D5
#undef FLASHTILE_D6
#undef FLASHTILE_D7
#undef FLASHTILE_D8
#undef FLASHTILE_D9
#undef FLASHTILE_D10
#undef FLASHTILE_D11
#undef FLASHTILE_D12
#undef FLASHTILE_D13
#undef FLASHTILE_D14
#undef FLASHTILE_D15
#undef FLASHTILE_D
#undef FLASHTILE_PRODUCT
#undef FLASHTILE_PRODUCTS
#undef FLASHTILE_LIST

}  // namespace flashtile::device
