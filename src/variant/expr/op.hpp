// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace flashtile::variant {

enum class Type : uint8_t { kBool, kInt, kFloat };

/// Operations of the expression IR. Integers mean 64 bits and wrap around; floats are double in the
/// reference and float32 in kernels. Arguments of arithmetic have been brought to one type by
/// kToFloat. The arithmetic itself is written down in `scalar_ops.hpp`.
// clang-format off
enum class Op : uint8_t {
  kBoolConst, kIntConst, kFloatConst,
  kVariable,  ///< `variable`
  kParam,     ///< a scalar parameter, `name_idx` into Expr::params; float
  kLoad,      ///< aux tensor `name_idx` at the int arguments
  kNeg, kAbs, kAdd, kSub, kMul, kMin, kMax,  // int or float; float min, max propagate NaN
  kDiv,                                      // int: truncates towards zero, x / 0 = 0; or float
  kMod,                                      // int: sign of the dividend, x % 0 = 0; float: fmod
  kFloorDiv, kFloorMod,                      // int: Python's // and %; 0 for a divisor of 0
  kBitAnd, kBitOr, kBitXor, kShl, kShr,      // int; shift counts are taken modulo 64
  kExp, kLog, kLog2, kTanh, kSigmoid, kSqrt, kSin, kCos, kFloor, kPow,  // float
  kEq, kNe, kLt, kLe, kGt, kGe,                                         // -> bool
  kNot, kAnd, kOr,                                                      // bool; right side lazy
  kSelect,                                                              // bool, then two alike
  kToInt,    ///< float truncated towards zero (saturating, NaN gives 0), or bool
  kToFloat,  ///< int or bool
  kToBool,   ///< != 0; ExprBuilder writes it as kNe with 0
};

enum class Variable : uint8_t {
  kScore,  ///< float; only in score expressions
  kBatch, kHead, kHeadKv, kQIdx, kKIdx, kSeqlenQ, kSeqlenK,
  kQueryOffset,  ///< position of query 0, for the built-in masks
  kLeftpad,      ///< stored index of key 0, for bias
};
// clang-format on
inline constexpr int kNumVariables = 10;

}  // namespace flashtile::variant
