// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "variant/expr/expr.hpp"

namespace flashtile::variant {

/// The names that texts mention, each as often as it is mentioned; also where what reads it has no
/// effect and so is no part of the expression.
struct Mentions {
  std::vector<std::string> aux;
  std::vector<std::string> params;
};

/// Reads the text of a score function; the root is a float. `aux` lists the tensors that it may
/// read; parameters (`param.NAME`) may have any name and are listed in the result.
///
/// Throws Error(kInvalidArgument) with the column, from 1:
/// "score expression, column 9: unknown name 'foo'; known: score, batch, ...".
/// Where `mentions` is given, the names of the text are added to it.
Expr parse_score(std::string_view text, std::span<const AuxSignature> aux,
                 Mentions* mentions = nullptr);

/// Reads the text of a mask: like a score function without `score`; the root is a bool.
Expr parse_mask(std::string_view text, std::span<const AuxSignature> aux,
                Mentions* mentions = nullptr);

}  // namespace flashtile::variant
