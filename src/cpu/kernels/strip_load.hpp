// SPDX-License-Identifier: Apache-2.0
#pragma once

// Loads of a strip program. See strip.hpp.

#include <cstdint>

#include "cpu/kernels/strip_machine.hpp"
#include "variant/expr/strip_program.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

inline float strip_f16_to_float(uint16_t bits) {
  // The exponent moved to its place in float32 is 112 too small. Subnormal numbers are multiples of
  // 2^-24; as they stand there they would count as zero. Infinity and NaN are those that reach
  // 2^16.
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t size = static_cast<uint32_t>(bits & 0x7fffu) << 13;
  const float tiny = static_cast<float>(static_cast<int32_t>(bits & 0x7fffu)) * 0x1p-24f;
  const uint32_t normal = size + (112u << 23);
  const uint32_t finite = size < 0x00800000u ? __builtin_bit_cast(uint32_t, tiny) : normal;
  return __builtin_bit_cast(float, (size >= 0x0f800000u ? size | 0x7f800000u : finite) | sign);
}

inline float strip_bf16_to_float(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

/// Which elements of an aux tensor the lanes of a strip read.
template <int N>
struct StripPlaces {
  /// 1 or -1 where all lanes read, each the element after or before the one of its neighbour, from
  /// offset[0] on; else 0, and offset and active hold what each lane reads.
  int64_t step = 0;
  alignas(64) uint8_t active[static_cast<unsigned>(N)];
  alignas(64) int64_t offset[static_cast<unsigned>(N)];
};

template <int N, typename T, typename R, typename F>
inline void strip_gather(const void* data, const StripPlaces<N>& places, int64_t count,
                         R* __restrict out, F f) {
  const T* __restrict from = static_cast<const T*>(data);
  if (places.step != 0) {
    from += places.offset[0];
    if (places.step > 0) {
      for (int64_t i = 0; i < count; ++i) out[i] = f(from[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) out[i] = f(from[-i]);
    }
    return;
  }
  for (int i = 0; i < N; ++i) {
    const R value = f(from[places.offset[i]]);
    out[i] = places.active[i] != 0 ? value : R{0};
  }
}

/// Finds the places of a strip whose lanes lie one after the other; false where they do not, or
/// where some lane reads nothing or has an index out of range.
template <int N>
inline bool strip_find_line(const StripMachine& m, const variant::StripInstruction& step,
                            StripPlaces<N>& places) {
  const variant::StripAux& aux = m.inputs->aux[step.aux];
  uint64_t differences = 0;
  if (step.predicate >= 0) {
    const uint8_t* __restrict predicate = m.bools<N>(step.predicate);
    uint8_t all = 1;
    for (int i = 0; i < N; ++i) all = static_cast<uint8_t>(all & predicate[i]);
    if (all == 0) return false;
  }
  if (m.count < 1) return false;
  uint64_t offset = 0;
  uint64_t line_step = 0;
  for (int32_t d = 0; d < aux.rank; ++d) {
    const int64_t* __restrict index = m.ints<N>(m.program->indices[step.first_index + d]);
    const auto first = static_cast<uint64_t>(index[0]);
    const uint64_t by = static_cast<uint64_t>(index[1]) - first;
    for (int i = 0; i < N; ++i) {
      differences |= static_cast<uint64_t>(index[i]) ^ (first + static_cast<uint64_t>(i) * by);
    }
    const int64_t ends[2] = {index[0], index[m.count - 1]};
    for (const int64_t end : ends) differences |= end < 0 || end >= aux.shape[d] ? 1 : 0;
    offset += first * static_cast<uint64_t>(aux.strides[d]);
    line_step += by * static_cast<uint64_t>(aux.strides[d]);
  }
  places.step = static_cast<int64_t>(line_step);
  if (differences != 0 || (places.step != 1 && places.step != -1)) {
    places.step = 0;
    return false;
  }
  places.offset[0] = static_cast<int64_t>(offset);
  return true;
}

/// Finds the elements that active lanes read; a lane whose index is out of range gets the nearest
/// one, and an inactive lane what some active one reads. False if nothing is read.
template <int N>
inline bool strip_find_places(StripMachine& m, const variant::StripInstruction& step,
                              StripPlaces<N>& places) {
  if constexpr (N > 1) {
    if (strip_find_line(m, step, places)) return true;
  }
  const variant::StripAux& aux = m.inputs->aux[step.aux];
  uint8_t* __restrict active = places.active;
  int64_t* __restrict offset = places.offset;
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
inline void strip_load_floats(const variant::StripAux& aux, const StripPlaces<N>& places,
                              int64_t count, float* out) {
  using variant::StripDType;
  switch (aux.dtype) {
    case StripDType::kF32:
      return strip_gather<N, float>(aux.data, places, count, out, [](float x) { return x; });
    case StripDType::kF64:
      return strip_gather<N, double>(aux.data, places, count, out,
                                     [](double x) { return static_cast<float>(x); });
    case StripDType::kF16:
      return strip_gather<N, uint16_t>(aux.data, places, count, out,
                                       [](uint16_t x) { return strip_f16_to_float(x); });
    case StripDType::kBF16:
      return strip_gather<N, uint16_t>(aux.data, places, count, out,
                                       [](uint16_t x) { return strip_bf16_to_float(x); });
    case StripDType::kI32:
      return strip_gather<N, int32_t>(aux.data, places, count, out,
                                      [](int32_t x) { return static_cast<float>(x); });
    case StripDType::kI64:
      return strip_gather<N, int64_t>(aux.data, places, count, out,
                                      [](int64_t x) { return static_cast<float>(x); });
  }
}

template <int N>
inline void strip_load(StripMachine& m, const variant::StripInstruction& step) {
  StripPlaces<N> places;
  const variant::StripAux& aux = m.inputs->aux[step.aux];
  const bool is_float = step.type == variant::Type::kFloat;
  if (!strip_find_places<N>(m, step, places)) {
    for (int i = 0; i < N && is_float; ++i) m.floats<N>(step.out)[i] = 0.0f;
    for (int i = 0; i < N && !is_float; ++i) m.ints<N>(step.out)[i] = 0;
    return;
  }
  if (is_float) {
    strip_load_floats<N>(aux, places, m.count, m.floats<N>(step.out));
  } else if (aux.dtype == variant::StripDType::kI32) {
    strip_gather<N, int32_t>(aux.data, places, m.count, m.ints<N>(step.out),
                             [](int32_t x) { return int64_t{x}; });
  } else {
    strip_gather<N, int64_t>(aux.data, places, m.count, m.ints<N>(step.out),
                             [](int64_t x) { return x; });
  }
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
