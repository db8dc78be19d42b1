// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "variant/expr/expr.hpp"

namespace flashtile::variant {

/// Reads the text of a score function; the root is a float. `aux` lists the tensors that it may
/// read; parameters (`param.NAME`) may have any name and are listed in the result.
///
/// Throws Error(kInvalidArgument) with the column, from 1:
/// "score expression, column 9: unknown name 'foo'; known: score, batch, ...".
Expr parse_score(std::string_view text, std::span<const AuxSignature> aux);

/// Reads the text of a mask: like a score function without `score`; the root is a bool.
Expr parse_mask(std::string_view text, std::span<const AuxSignature> aux);

}  // namespace flashtile::variant
