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
};

namespace expression {

using Bool = bool;
using Int = int64;
using Float = float;

FLASHTILE_DEVICE Int wrap(uint64 bits) { return static_cast<Int>(bits); }

template <class T>
FLASHTILE_DEVICE T select(Bool condition, T a, T b) {
  return condition ? a : b;
}
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

template <class... Index>
FLASHTILE_DEVICE Float load_float_aux(const AuxParam& aux, Bool active, Index... index) {
  Int offset = 0;
  if (!(aux_offset(aux, 0, offset, index...) && active)) return 0.0f;
  return load_global(reinterpret_cast<const float*>(aux.data + offset));
}

template <class... Index>
FLASHTILE_DEVICE Int load_int_aux(const AuxParam& aux, Bool active, Index... index) {
  Int offset = 0;
  if (!(aux_offset(aux, 0, offset, index...) && active)) return 0;
  if (aux.element_bytes == 8) return load_global(reinterpret_cast<const int64*>(aux.data + offset));
  return load_global(reinterpret_cast<const int*>(aux.data + offset));
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
