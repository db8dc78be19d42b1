// SPDX-License-Identifier: Apache-2.0
//
// What the text of user expressions takes from its surroundings: types, operations, the variables
// of one (query, key) pair and the loads of aux tensors. Generated text stands in a function that
// has `using namespace expression` and names for what it reads.
#pragma once

#include "cuda/device/params/attention_params.hpp"
#include "cuda/device/ptx/convert.cuh"

namespace flashtile::device {

/// The variables of an expression.
struct Pair {
  int64 batch, head, head_kv, q_idx, k_idx, seqlen_q, seqlen_k, query_offset, leftpad;
  /// What has to be added to q_idx and k_idx: constants, where the text is unrolled.
  int q_step = 0, k_step = 0;
};

namespace expression {

using Bool = bool;
using Int = int64;
using Float = float;

/// A type without its const, for members that are given later.
template <class T>
struct Plain {
  using Type = T;
};
template <class T>
struct Plain<const T> {
  using Type = T;
};

/// An integer as base + step. Steps are made of those of a pair, bases of all else, so that pairs
/// of a tile share the arithmetic on bases, and reads that differ by nothing are one.
struct SteppedInt {
  Int base, step;

  FLASHTILE_DEVICE SteppedInt(Int value, Int further = 0) : base(value), step(further) {}
  FLASHTILE_DEVICE operator Int() const {
    return static_cast<Int>(static_cast<uint64>(base) + static_cast<uint64>(step));
  }
};

/// Has a type where A or B is a SteppedInt: two plain integers have the language's own operators,
/// and one of each (abs() gives plain ones) must not be a choice between both kinds.
template <class A, class B>
struct StepsOf {};
template <class A>
struct StepsOf<A, SteppedInt> {
  using Type = SteppedInt;
};
template <class B>
struct StepsOf<SteppedInt, B> {
  using Type = SteppedInt;
};
template <>
struct StepsOf<SteppedInt, SteppedInt> {
  using Type = SteppedInt;
};

template <class A, class B>
FLASHTILE_DEVICE typename StepsOf<A, B>::Type operator+(A left, B right) {
  const SteppedInt a(left), b(right);
  return {a.base + b.base, a.step + b.step};
}
template <class A, class B>
FLASHTILE_DEVICE typename StepsOf<A, B>::Type operator-(A left, B right) {
  const SteppedInt a(left), b(right);
  return {a.base - b.base, a.step - b.step};
}
FLASHTILE_DEVICE SteppedInt operator-(SteppedInt a) { return {-a.base, -a.step}; }
template <class A, class B>
FLASHTILE_DEVICE typename StepsOf<A, B>::Type operator*(A left, B right) {
  const SteppedInt a(left), b(right);
  if (b.step == 0) return {a.base * b.base, a.step * b.base};
  if (a.step == 0) return {a.base * b.base, a.base * b.step};
  return {static_cast<Int>(a) * static_cast<Int>(b)};
}

template <bool kIsStepped>
struct IndexOf {
  using Type = Int;
};
template <>
struct IndexOf<true> {
  using Type = SteppedInt;
};

template <bool kIsStepped>
FLASHTILE_DEVICE typename IndexOf<kIsStepped>::Type step_of(int step) {
  if constexpr (kIsStepped) {
    return SteppedInt(0, step);
  } else {
    return step;
  }
}

FLASHTILE_DEVICE Int wrap(uint64 bits) { return static_cast<Int>(bits); }

template <class T>
FLASHTILE_DEVICE T select(Bool condition, T a, T b) {
  return condition ? a : b;
}
FLASHTILE_DEVICE Int select(Bool condition, SteppedInt a, Int b) { return condition ? Int(a) : b; }
FLASHTILE_DEVICE Int select(Bool condition, Int a, SteppedInt b) { return condition ? a : Int(b); }
FLASHTILE_DEVICE Bool logical_not(Bool a) { return !a; }
FLASHTILE_DEVICE Bool logical_and(Bool a, Bool b) { return a & b; }
FLASHTILE_DEVICE Bool logical_or(Bool a, Bool b) { return a | b; }

FLASHTILE_DEVICE Int to_int(Float x) { return int64_from_float(x); }
FLASHTILE_DEVICE Int to_int(Bool x) { return x ? 1 : 0; }
FLASHTILE_DEVICE Float to_float(Int x) { return static_cast<Float>(x); }
FLASHTILE_DEVICE Float to_float(Bool x) { return x ? 1.0f : 0.0f; }
FLASHTILE_DEVICE Bool to_bool(Int x) { return x != 0; }
FLASHTILE_DEVICE Bool to_bool(Float x) { return x != 0.0f; }

/// Towards zero; a divisor of 0 gives 0.
FLASHTILE_DEVICE Int int_div(Int a, Int b) {
  if (b == 0) return 0;
  if (b == -1) return wrap(0 - static_cast<uint64>(a));
  // A division of 32 bits is three times as fast, and positions fit.
  if ((static_cast<uint64>(a) | static_cast<uint64>(b)) >> 32 == 0) {
    return static_cast<uint32>(a) / static_cast<uint32>(b);
  }
  return a / b;
}
FLASHTILE_DEVICE Int int_mod(Int a, Int b) {
  if (b == 0 || b == -1) return 0;
  if ((static_cast<uint64>(a) | static_cast<uint64>(b)) >> 32 == 0) {
    return static_cast<uint32>(a) % static_cast<uint32>(b);
  }
  return a % b;
}
FLASHTILE_DEVICE Int floor_div(Int a, Int b) {
  const Int remainder = int_mod(a, b);
  return int_div(a, b) - (remainder != 0 && (remainder < 0) != (b < 0) ? 1 : 0);
}
FLASHTILE_DEVICE Int floor_mod(Int a, Int b) {
  const Int remainder = int_mod(a, b);
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}
FLASHTILE_DEVICE Int shift_left(Int a, Int count) {
  return wrap(static_cast<uint64>(a) << (count & 63));
}
FLASHTILE_DEVICE Int shift_right(Int a, Int count) { return a >> (count & 63); }

FLASHTILE_DEVICE Int abs(Int x) { return x < 0 ? wrap(0 - static_cast<uint64>(x)) : x; }
FLASHTILE_DEVICE Int min(Int a, Int b) { return a < b ? a : b; }
FLASHTILE_DEVICE Int max(Int a, Int b) { return a > b ? a : b; }
FLASHTILE_DEVICE Float abs(Float x) { return absolute(x); }
/// NaN where one is.
FLASHTILE_DEVICE Float min(Float a, Float b) { return a != a ? a : a < b ? a : b; }
FLASHTILE_DEVICE Float max(Float a, Float b) { return a != a ? a : a > b ? a : b; }

FLASHTILE_DEVICE Float exp(Float x) { return exp_precise(x); }
FLASHTILE_DEVICE Float log(Float x) { return log_precise(x); }
FLASHTILE_DEVICE Float log2(Float x) { return log2_precise(x); }
FLASHTILE_DEVICE Float tanh(Float x) { return tanh_precise(x); }
FLASHTILE_DEVICE Float sigmoid(Float x) { return 1.0f / (1.0f + exp_precise(-x)); }
FLASHTILE_DEVICE Float sqrt(Float x) { return sqrt_rounded(x); }
FLASHTILE_DEVICE Float sin(Float x) { return sin_precise(x); }
FLASHTILE_DEVICE Float cos(Float x) { return cos_precise(x); }
FLASHTILE_DEVICE Float floor(Float x) { return round_down(x); }
FLASHTILE_DEVICE Float pow(Float x, Float y) { return pow_precise(x, y); }
FLASHTILE_DEVICE Float fmod(Float x, Float y) { return remainder_of(x, y); }
FLASHTILE_DEVICE Float infinity() { return device::infinity(); }
FLASHTILE_DEVICE Float not_a_number() { return device::not_a_number(); }

/// The offset of an element; false where the index lies outside the tensor, as it may in the rest
/// of a tile.
FLASHTILE_DEVICE Bool aux_offset(const AuxParam&, int, Int&) { return true; }
template <class... Rest>
FLASHTILE_DEVICE Bool aux_offset(const AuxParam& aux, int dim, Int& offset, Int index,
                                 Rest... rest) {
  const Bool is_inside = index >= 0 && index < aux.shape[dim];
  offset += index * aux.strides[dim];
  return aux_offset(aux, dim + 1, offset, rest...) & is_inside;
}

/// The same where the index is known to lie inside: steps apart, by strides of 32 bits; in the last
/// dimension one element lies behind the other, so that steps of an unrolled loop are constants.
constexpr int kInsideBytes = 4;
FLASHTILE_DEVICE void add_offset(const AuxParam&, int, Int&, Int&) {}
template <class... Rest>
FLASHTILE_DEVICE void add_offset(const AuxParam& aux, int dim, Int& offset, Int& steps,
                                 SteppedInt index, Rest... rest) {
  const Int stride = sizeof...(rest) == 0 ? Int(kInsideBytes) : aux.strides[dim];
  offset += index.base * stride;
  steps += static_cast<Int>(static_cast<int>(index.step)) * static_cast<int>(stride);
  add_offset(aux, dim + 1, offset, steps, rest...);
}

/// Where an element lies; false where it is not there.
template <bool kIsInside, class... Index>
FLASHTILE_DEVICE Bool find_aux(const AuxParam& aux, const char*& address, Index... index) {
  Int offset = 0;
  if constexpr (kIsInside) {
    Int steps = 0;
    add_offset(aux, 0, offset, steps, index...);
    address = aux.data + offset + steps;
    return true;
  } else {
    const Bool is_inside = aux_offset(aux, 0, offset, index...);
    address = aux.data + offset;
    return is_inside;
  }
}

/// kIsInside: the caller knows that the index lies inside the tensor, as is_in_aux says it.
template <bool kIsInside, class... Index>
FLASHTILE_DEVICE Float load_float_aux(const AuxParam& aux, Bool active, Index... index) {
  const char* address;
  const Bool is_there = find_aux<kIsInside>(aux, address, index...) & active;
  return float_from_bits(load_global_if(is_there, reinterpret_cast<const uint32*>(address)));
}

template <bool kIsInside, class... Index>
FLASHTILE_DEVICE Int load_int_aux(const AuxParam& aux, Bool active, Index... index) {
  const char* address;
  const Bool is_there = find_aux<kIsInside>(aux, address, index...) & active;
  if constexpr (kIsInside) {
    return static_cast<int>(load_global_if(is_there, reinterpret_cast<const uint32*>(address)));
  }
  const Bool is_wide = aux.element_bytes == 8;
  const Int wide = load_global_if(is_there & is_wide, reinterpret_cast<const int64*>(address));
  const uint32 narrow =
      load_global_if(is_there & !is_wide, reinterpret_cast<const uint32*>(address));
  return is_wide ? wide : static_cast<int>(narrow);
}

/// Whether an element is in the tensor, which has elements of kInsideBytes, contiguous rows, and
/// strides of 31 bits.
template <class... Index>
FLASHTILE_DEVICE Bool is_in_aux(const AuxParam& aux, Index... index) {
  Int offset = 0;
  Bool is_inside = aux_offset(aux, 0, offset, index...);
  is_inside = is_inside & (aux.element_bytes == kInsideBytes);
  for (int dim = 0; dim < static_cast<int>(sizeof...(index)); ++dim) {
    is_inside = is_inside & (aux.strides[dim] == static_cast<int>(aux.strides[dim]));
  }
  constexpr int kLast = static_cast<int>(sizeof...(index)) - 1;
  if constexpr (kLast >= 0) is_inside = is_inside & (aux.strides[kLast] == kInsideBytes);
  return is_inside;
}

/// The same element's place in row-major order.
FLASHTILE_DEVICE Bool aux_place(const AuxParam&, int, Int&) { return true; }
template <class... Rest>
FLASHTILE_DEVICE Bool aux_place(const AuxParam& aux, int dim, Int& place, Int index, Rest... rest) {
  const Bool is_inside = index >= 0 && index < aux.shape[dim];
  place = place * aux.shape[dim] + index;
  return aux_place(aux, dim + 1, place, rest...) & is_inside;
}

/// Hands the derivative by an element of aux tensor `aux_idx` to `sink`.
template <class Sink, class... Index>
FLASHTILE_DEVICE void give_gradient(const Sink& sink, int aux_idx, const AuxParam& aux, Bool active,
                                    Float derivative, Index... index) {
  Int place = 0;
  if (aux_place(aux, 0, place, index...) && active) sink(aux_idx, derivative, place);
}

}  // namespace expression
}  // namespace flashtile::device
