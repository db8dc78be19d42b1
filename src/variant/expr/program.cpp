// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/program.hpp"

#include <algorithm>
#include <utility>

#include "variant/expr/lower.hpp"
#include "variant/expr/register_allocation.hpp"

namespace flashtile::variant {
StripProgram Program::view() const {
  StripProgram out;
  out.instructions = instructions.data();
  out.indices = indices.data();
  out.outputs = outputs.data();
  out.num_outputs = static_cast<int32_t>(outputs.size());
  std::ranges::copy(ends, out.ends);
  std::ranges::copy(num_scalars, out.num_scalars);
  std::ranges::copy(num_strips, out.num_strips);
  return out;
}

Program compile(std::span<const Expr> roots) {
  Lowered lowered = lower(roots);
  Program program = allocate_registers(std::move(lowered.values), lowered.roots);
  program.aux = std::move(lowered.aux);
  program.params = std::move(lowered.params);
  return program;
}

StripAux strip_aux(const TensorView& tensor) {
  StripAux out;
  out.data = tensor.data;
  out.dtype = static_cast<StripDType>(tensor.dtype);
  out.rank = tensor.ndim;
  std::ranges::copy(tensor.shape, out.shape);
  std::ranges::copy(tensor.strides, out.strides);
  return out;
}

}  // namespace flashtile::variant
