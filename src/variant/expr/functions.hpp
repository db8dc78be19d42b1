// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "variant/expr/op.hpp"

namespace flashtile::variant {

/// A function of the expression language.
struct Function {
  std::string_view name;
  int num_arguments;
  Op op;
};

inline constexpr std::array<Function, 18> kFunctions = {{
    {"exp", 1, Op::kExp},
    {"log", 1, Op::kLog},
    {"log2", 1, Op::kLog2},
    {"tanh", 1, Op::kTanh},
    {"sigmoid", 1, Op::kSigmoid},
    {"abs", 1, Op::kAbs},
    {"sqrt", 1, Op::kSqrt},
    {"sin", 1, Op::kSin},
    {"cos", 1, Op::kCos},
    {"floor", 1, Op::kFloor},
    {"min", 2, Op::kMin},
    {"max", 2, Op::kMax},
    {"pow", 2, Op::kPow},
    {"int", 1, Op::kToInt},
    {"float", 1, Op::kToFloat},
    {"select", 3, Op::kSelect},
    {"floordiv", 2, Op::kFloorDiv},
    {"floormod", 2, Op::kFloorMod},
}};

/// The name of an operation that is a function; empty for others.
inline std::string_view function_name(Op op) {
  const auto* found = std::ranges::find(kFunctions, op, &Function::op);
  return found == kFunctions.end() ? std::string_view() : found->name;
}

}  // namespace flashtile::variant
