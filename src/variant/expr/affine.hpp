// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "variant/expr/expr.hpp"

namespace flashtile::variant {

/// The mask lo <= k_idx - q_idx <= hi. The bounds are int expressions without q_idx and k_idx; an
/// empty one is no bound.
struct Band {
  Expr lo;
  Expr hi;
};

/// Recognises a conjunct (see `conjuncts`) that is such a band: a comparison <= < >= > == of sums
/// in which q_idx and k_idx have opposite factors, or abs(...) below a bound. The equivalence holds
/// as long as nothing leaves 64 bits.
std::optional<Band> match_band(const Expr& conjunct);

}  // namespace flashtile::variant
