// SPDX-License-Identifier: Apache-2.0
//
// Element types, and their conversion to and from float. 16-bit elements travel as bits.
#pragma once

#include "cuda/device/ptx/define.cuh"
#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/memory.cuh"

namespace flashtile::device {

enum class Element { kNone, kF32, kF16, kBF16, kI32, kI64, kU8, kI8, kE4M3 };

constexpr int element_bytes(Element element) {
  switch (element) {
    case Element::kF16:
    case Element::kBF16:
      return 2;
    case Element::kF32:
    case Element::kI32:
      return 4;
    case Element::kI64:
      return 8;
    case Element::kU8:
    case Element::kI8:
    case Element::kE4M3:
      return 1;
    default:
      return 0;
  }
}

FLASHTILE_DEVICE float float_from_f16(uint16 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
FLASHTILE_DEVICE float float_from_bf16(uint16 bits) {
  return float_from_bits(static_cast<uint32>(bits) << 16);
}

/// Two floats as 16-bit elements, `low` in the low half.
template <Element element>
FLASHTILE_DEVICE uint32 pack(float low, float high) {
  static_assert(element == Element::kF16 || element == Element::kBF16, "a 16-bit element");
  uint32 pair;
  if constexpr (element == Element::kF16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

/// The two elements of a pair.
template <Element element>
FLASHTILE_DEVICE void unpack(uint32 pair, float& low, float& high) {
  if constexpr (element == Element::kF16) {
    low = float_from_f16(static_cast<uint16>(pair));
    high = float_from_f16(static_cast<uint16>(pair >> 16));
  } else {
    low = float_from_bits(pair << 16);
    high = float_from_bits(pair & 0xffff0000u);
  }
}

/// a b + c of two pairs of 16-bit elements, each rounded once.
template <Element element>
FLASHTILE_DEVICE uint32 fused_multiply_add_pair(uint32 a, uint32 b, uint32 c) {
  uint32 d;
  if constexpr (element == Element::kF16) {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  } else {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  }
  return d;
}

/// True where one instruction makes f16 of e4m3; the compiler of CUDA 12.0 knows it on Hopper.
#if __CUDA_ARCH__ >= 900 || \
    (__CUDA_ARCH__ == 890 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1201)
constexpr bool kHasE4m3 = true;
#else
constexpr bool kHasE4m3 = false;
#endif
/// Two codes as f16. Where kHasE4m3.
FLASHTILE_DEVICE uint32 f16_pair_of_e4m3(uint16 codes) {
  uint32 pair = 0;
#if __CUDA_ARCH__ >= 890
  if constexpr (kHasE4m3) asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(codes));
#endif
  return pair;
}

/// A floating element of global memory.
template <Element element>
FLASHTILE_DEVICE float load_element(const void* address) {
  if constexpr (element == Element::kF32) {
    return load_global(static_cast<const float*>(address));
  } else if constexpr (element == Element::kF16) {
    return float_from_f16(load_global(static_cast<const uint16*>(address)));
  } else {
    return float_from_bf16(load_global(static_cast<const uint16*>(address)));
  }
}

/// The same where `is_there`, else 0.
template <Element element>
FLASHTILE_DEVICE float load_element_if(bool is_there, const void* address) {
  if constexpr (element == Element::kF32) {
    return float_from_bits(load_global_if(is_there, static_cast<const uint32*>(address)));
  } else if constexpr (element == Element::kF16) {
    return float_from_f16(load_global_if(is_there, static_cast<const uint16*>(address)));
  } else {
    return float_from_bf16(load_global_if(is_there, static_cast<const uint16*>(address)));
  }
}

/// Two neighbours, aligned to both.
template <Element element>
FLASHTILE_DEVICE void load_element_pair(const void* address, float (&values)[2]) {
  if constexpr (element == Element::kF32) {
    const uint64 both = load_global(static_cast<const uint64*>(address));
    values[0] = float_from_bits(static_cast<uint32>(both));
    values[1] = float_from_bits(static_cast<uint32>(both >> 32));
  } else {
    unpack<element>(load_global(static_cast<const uint32*>(address)), values[0], values[1]);
  }
}

/// Writes a float to global memory, rounded to the element.
template <Element element>
FLASHTILE_DEVICE void store_element(void* address, float value) {
  if constexpr (element == Element::kF32) {
    *static_cast<float*>(address) = value;
  } else {
    *static_cast<uint16*>(address) = static_cast<uint16>(pack<element>(value, 0.0f));
  }
}

}  // namespace flashtile::device
