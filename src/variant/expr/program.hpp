// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "flashtile/tensor.hpp"
#include "variant/expr/expr.hpp"
#include "variant/expr/strip_program.hpp"

namespace flashtile::variant {

/// Expressions compiled for evaluation on strips of keys: a list of instructions over registers,
/// what is common to several roots worked out once, and everything as rarely as it changes. Loads
/// are predicated by the path on which they are executed, so that lanes that do not take it read
/// nothing.
struct Program {
  std::vector<StripInstruction> instructions;
  std::vector<int32_t> indices;
  std::vector<StripOutput> outputs;  ///< one for each root, of the root's type
  std::vector<AuxSignature> aux;     ///< of all roots
  std::vector<std::string> params;
  int32_t ends[4] = {0, 0, 0, 0};
  int32_t num_scalars[3] = {0, 0, 0};
  int32_t num_strips[3] = {0, 0, 0};

  StripProgram view() const;
};

/// Compiles roots into one program. Throws Error(kUnsupported) for expressions of absurd size.
Program compile(std::span<const Expr> roots);

/// A tensor as strip programs see it. The dtype must be one of f64, f32, f16, bf16, i32, i64.
StripAux strip_aux(const TensorView& tensor);

}  // namespace flashtile::variant
