// SPDX-License-Identifier: Apache-2.0
#pragma once

// Loads of a strip program. See strip.hpp.

#include <cstdint>

#include "cpu/kernels/strip_machine.hpp"
#include "variant/expr/strip_program.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

inline float strip_f16_to_float(uint16_t bits) {
  // The exponent moved to its place in float32 is 112 too small: one product puts it right, for
  // subnormal numbers too. Infinity and NaN are those that reach 2^16.
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t size = static_cast<uint32_t>(bits & 0x7fffu) << 13;
  const float value = __builtin_bit_cast(float, size) * 0x1p112f;
  const uint32_t finite = __builtin_bit_cast(uint32_t, value);
  return __builtin_bit_cast(float, (value >= 0x1p16f ? size | 0x7f800000u : finite) | sign);
}

inline float strip_bf16_to_float(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

template <int N, typename T, typename R, typename F>
inline void strip_gather(const void* data, const int64_t* __restrict offset,
                         const uint8_t* __restrict active, R* __restrict out, F f) {
  const T* __restrict from = static_cast<const T*>(data);
  for (int i = 0; i < N; ++i) {
    const R value = f(from[offset[i]]);
    out[i] = active[i] != 0 ? value : R{0};
  }
}

/// Offsets of the elements that active lanes read; a lane whose index is out of range gets the
/// nearest one, and an inactive lane what some active one reads. False if nothing is read.
template <int N>
inline bool strip_offsets(StripMachine& m, const variant::StripInstruction& step,
                          uint8_t* __restrict active, int64_t* __restrict offset) {
  const variant::StripAux& aux = m.inputs->aux[step.aux];
  const int64_t count = N == 1 ? 1 : m.count;
  for (int i = 0; i < N; ++i) active[i] = static_cast<uint8_t>(i < count);
  if (step.predicate >= 0) {
    const uint8_t* __restrict predicate = m.bools<N>(step.predicate);
    for (int i = 0; i < N; ++i) active[i] = static_cast<uint8_t>(active[i] & predicate[i]);
  }
  for (int i = 0; i < N; ++i) offset[i] = 0;
  uint8_t outside = 0;
  bool is_empty = false;
  for (int32_t d = 0; d < aux.rank; ++d) {
    const int64_t* __restrict index = m.ints<N>(m.program->indices[step.first_index + d]);
    const int64_t last = aux.shape[d] - 1;
    const int64_t stride = aux.strides[d];
    is_empty = is_empty | (last < 0);
    for (int i = 0; i < N; ++i) {
      const int64_t low = index[i] < 0 ? 0 : index[i];
      const int64_t place = low > last ? last : low;
      outside = static_cast<uint8_t>(outside | (active[i] & (place != index[i])));
      offset[i] += place * stride;
    }
  }
  if (outside != 0 && m.error == 0) m.error = step.aux + 1;
  if (is_empty) return false;
  int first = 0;
  while (first < N && active[first] == 0) ++first;
  if (first == N) return false;
  const int64_t harmless = offset[first];
  for (int i = 0; i < N; ++i) offset[i] = active[i] != 0 ? offset[i] : harmless;
  return true;
}

template <int N>
inline void strip_load_floats(const variant::StripAux& aux, const int64_t* offset,
                              const uint8_t* active, float* out) {
  using variant::StripDType;
  switch (aux.dtype) {
    case StripDType::kF32:
      return strip_gather<N, float>(aux.data, offset, active, out, [](float x) { return x; });
    case StripDType::kF64:
      return strip_gather<N, double>(aux.data, offset, active, out,
                                     [](double x) { return static_cast<float>(x); });
    case StripDType::kF16:
      return strip_gather<N, uint16_t>(aux.data, offset, active, out,
                                       [](uint16_t x) { return strip_f16_to_float(x); });
    case StripDType::kBF16:
      return strip_gather<N, uint16_t>(aux.data, offset, active, out,
                                       [](uint16_t x) { return strip_bf16_to_float(x); });
    case StripDType::kI32:
      return strip_gather<N, int32_t>(aux.data, offset, active, out,
                                      [](int32_t x) { return static_cast<float>(x); });
    case StripDType::kI64:
      return strip_gather<N, int64_t>(aux.data, offset, active, out,
                                      [](int64_t x) { return static_cast<float>(x); });
  }
}

template <int N>
inline void strip_load(StripMachine& m, const variant::StripInstruction& step) {
  alignas(64) uint8_t active[static_cast<unsigned>(N)];
  alignas(64) int64_t offset[static_cast<unsigned>(N)];
  const variant::StripAux& aux = m.inputs->aux[step.aux];
  const bool is_float = step.type == variant::Type::kFloat;
  if (!strip_offsets<N>(m, step, active, offset)) {
    for (int i = 0; i < N && is_float; ++i) m.floats<N>(step.out)[i] = 0.0f;
    for (int i = 0; i < N && !is_float; ++i) m.ints<N>(step.out)[i] = 0;
    return;
  }
  if (is_float) {
    strip_load_floats<N>(aux, offset, active, m.floats<N>(step.out));
  } else if (aux.dtype == variant::StripDType::kI32) {
    strip_gather<N, int32_t>(aux.data, offset, active, m.ints<N>(step.out),
                             [](int32_t x) { return int64_t{x}; });
  } else {
    strip_gather<N, int64_t>(aux.data, offset, active, m.ints<N>(step.out),
                             [](int64_t x) { return x; });
  }
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
