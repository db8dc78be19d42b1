// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flashtile::variant {

enum class Type : uint8_t { kBool, kInt, kFloat };

/// Operations of the expression IR. Integers mean 64 bits; floats are double in the reference and
/// float32 in kernels. Arguments of arithmetic have been brought to one type by kToFloat.
enum class Op : uint8_t {
  kBoolConst, kIntConst, kFloatConst,
  kVariable,  ///< `variable`
  kParam,     ///< a scalar parameter, `name_idx` into Expr::params; float
  kLoad,      ///< aux tensor `name_idx` at the int arguments
  kNeg, kAbs, kAdd, kSub, kMul, kMin, kMax,  // int or float
  kDiv,                                      // int: truncates towards zero, x / 0 = 0; or float
  kMod,                                      // int: sign of the dividend, x % 0 = 0; float: fmod
  kFloorDiv, kFloorMod,                      // int: Python's // and %
  kBitAnd, kBitOr, kBitXor, kShl, kShr,      // int; shift counts are taken modulo 64
  kExp, kLog, kLog2, kTanh, kSigmoid, kSqrt, kSin, kCos, kFloor, kPow,  // float
  kEq, kNe, kLt, kLe, kGt, kGe,                                         // -> bool
  kNot, kAnd, kOr,                                                      // bool; right side lazy
  kSelect,                                                              // bool, then two alike
  kToInt,    ///< float truncated towards zero, or bool
  kToFloat,  ///< int or bool
  kToBool,   ///< != 0
};

enum class Variable : uint8_t {
  kScore,  ///< float; only in score expressions
  kBatch, kHead, kHeadKv, kQIdx, kKIdx, kSeqlenQ, kSeqlenK,
  kQueryOffset,  ///< position of query 0, for the built-in masks
  kLeftpad,      ///< stored index of key 0, for bias
};
inline constexpr int kNumVariables = 10;

struct Node {
  Op op;
  Type type;
  Variable variable = Variable::kScore;
  int32_t name_idx = -1;
  int32_t first_argument = 0;  ///< into Expr::arguments
  int32_t num_arguments = 0;
  int64_t int_value = 0;
  double float_value = 0;
};

/// What an expression may read: the aux tensors, by name.
struct AuxSignature {
  std::string name;
  int rank = 0;
  bool is_float = false;
};

/// A typed expression: nodes in an order where arguments come before their users; the last is the
/// root. Equal subtrees are one node. A value; cheap to copy for the sizes that occur.
struct Expr {
  std::vector<Node> nodes;
  std::vector<int32_t> arguments;
  std::vector<AuxSignature> aux;    ///< those that are read, by Node::name_idx
  std::vector<std::string> params;  ///< those that are read, by Node::name_idx

  int32_t root() const { return static_cast<int32_t>(nodes.size()) - 1; }
  bool empty() const { return nodes.empty(); }
  const Node& node(int32_t idx) const { return nodes[static_cast<size_t>(idx)]; }
  std::span<const int32_t> args(int32_t idx) const {
    return {arguments.data() + node(idx).first_argument,
            static_cast<size_t>(node(idx).num_arguments)};
  }
};

}  // namespace flashtile::variant
