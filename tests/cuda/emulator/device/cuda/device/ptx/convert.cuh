// SPDX-License-Identifier: Apache-2.0
//
// src/cuda/device/ptx/convert.cuh for the emulated GPU.
#pragma once

#include "core/float16.hpp"
#include "core/float8.hpp"
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

inline float float_from_f16(uint16 bits) { return flashtile::f16_to_float(bits); }
inline float float_from_bf16(uint16 bits) { return flashtile::bf16_to_float(bits); }

template <Element element>
uint16 bits_of(float value) {
  return element == Element::kF16 ? flashtile::float_to_f16(value)
                                  : flashtile::float_to_bf16(value);
}
template <Element element>
float from_bits(uint16 bits) {
  return element == Element::kF16 ? float_from_f16(bits) : float_from_bf16(bits);
}

template <Element element>
uint32 pack(float low, float high) {
  return bits_of<element>(low) | static_cast<uint32>(bits_of<element>(high)) << 16;
}
template <Element element>
void unpack(uint32 pair, float& low, float& high) {
  low = from_bits<element>(static_cast<uint16>(pair));
  high = from_bits<element>(static_cast<uint16>(pair >> 16));
}

template <Element element>
uint32 fused_multiply_add_pair(uint32 a, uint32 b, uint32 c) {
  float x[2], y[2], z[2];
  unpack<element>(a, x[0], x[1]);
  unpack<element>(b, y[0], y[1]);
  unpack<element>(c, z[0], z[1]);
  return pack<element>(std::fma(x[0], y[0], z[0]), std::fma(x[1], y[1], z[1]));
}

/// As on GPUs without the instruction, whose way is the longer one.
constexpr bool kHasE4m3 = false;
inline uint32 f16_pair_of_e4m3(uint16 codes) {
  return pack<Element::kF16>(flashtile::e4m3_to_float(static_cast<uint8_t>(codes)),
                             flashtile::e4m3_to_float(static_cast<uint8_t>(codes >> 8)));
}

template <Element element>
float load_element(const void* address) {
  if constexpr (element == Element::kF32) {
    return *static_cast<const float*>(address);
  } else {
    return from_bits<element>(*static_cast<const uint16*>(address));
  }
}

template <Element element>
float load_element_if(bool is_there, const void* address) {
  return is_there ? load_element<element>(address) : 0.0f;
}

template <Element element>
void load_element_pair(const void* address, float (&values)[2]) {
  constexpr int kBytes = element_bytes(element);
  if (reinterpret_cast<uintptr_t>(address) % (2 * kBytes) != 0) {
    emulator::stop("a pair is not aligned");
  }
  for (int i = 0; i < 2; ++i) {
    values[i] = load_element<element>(static_cast<const char*>(address) + i * kBytes);
  }
}

template <Element element>
void store_element(void* address, float value) {
  if constexpr (element == Element::kF32) {
    *static_cast<float*>(address) = value;
  } else {
    *static_cast<uint16*>(address) = bits_of<element>(value);
  }
}

}  // namespace flashtile::device
